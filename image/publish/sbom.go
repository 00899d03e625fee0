package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// document is an SPDX 2.3 document in its JSON form, as far as we fill it in.
type document struct {
	Version       string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	Name     string     `json:"name"`
	ID       string     `json:"SPDXID"`
	Version  string     `json:"versionInfo,omitempty"`
	Supplier string     `json:"supplier,omitempty"`
	Location string     `json:"downloadLocation"`
	Analyzed bool       `json:"filesAnalyzed"`
	Licence  string     `json:"licenseDeclared"`
	Purpose  string     `json:"primaryPackagePurpose,omitempty"`
	Checksum []checksum `json:"checksums,omitempty"`
	Refs     []ref      `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type ref struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

func runSBOM(args []string, stderr io.Writer) error {
	set, at := flags("sbom", stderr)
	name := set.String("name", "", "the name of the image")
	commit := set.String("commit", "", "the commit it was built from")
	packages := set.String("packages", "", "mkosi's manifest")
	out := set.String("out", "", "the file to write")
	if err := parse(set, args, "name", "packages", "out"); err != nil {
		return err
	}
	d := newDocument(*name, *commit, stamp(*at))
	if err := d.addDebian(*packages); err != nil {
		return fmt.Errorf("list the packages of %s: %w", *name, err)
	}
	for _, binary := range set.Args() {
		if err := d.addBinary(binary); err != nil {
			return fmt.Errorf("list the modules of %s: %w", binary, err)
		}
	}
	text, err := d.encode()
	if err != nil {
		return err
	}
	return writeAll(map[string][]byte{*out: text})
}

const imageID = "SPDXRef-image"

func newDocument(name, commit string, at time.Time) *document {
	return &document{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name,
		Creation: creation{Created: at.Format(time.RFC3339), Creators: []string{"Tool: catchment-image"}},
		Packages: []spdxPackage{{
			Name: name, ID: imageID, Version: commit, Location: "NOASSERTION", Licence: "NOASSERTION", Purpose: "OPERATING-SYSTEM",
		}},
		Relationships: []relationship{{From: "SPDXRef-DOCUMENT", Type: "DESCRIBES", To: imageID}},
	}
}

// add adds a package that another one holds, once.
func (d *document) add(p spdxPackage, holder string) {
	p.Location, p.Licence = cmp.Or(p.Location, "NOASSERTION"), "NOASSERTION"
	if !slices.ContainsFunc(d.Packages, func(q spdxPackage) bool { return q.ID == p.ID }) {
		d.Packages = append(d.Packages, p)
	}
	d.Relationships = append(d.Relationships, relationship{From: holder, Type: "CONTAINS", To: p.ID})
}

// addDebian adds the packages of mkosi's manifest.
func (d *document) addDebian(name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var m struct {
		Packages []struct{ Type, Name, Version, Architecture string }
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(m.Packages) == 0 {
		return fmt.Errorf("%s: no packages", name)
	}
	for _, p := range m.Packages {
		if p.Type != "deb" || p.Name == "" || p.Version == "" {
			return fmt.Errorf("%s: %+v is no Debian package", name, p)
		}
		d.add(spdxPackage{
			Name: p.Name, ID: spdxID("deb", p.Name, p.Architecture), Version: p.Version, Supplier: "Organization: Debian",
			Refs: purl(fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=debian-13", url.PathEscape(p.Name), url.QueryEscape(p.Version), p.Architecture)),
		}, imageID)
	}
	return nil
}

// addBinary adds one of our commands, and the Go modules that were linked into it.
func (d *document) addBinary(name string) error {
	info, err := buildinfo.ReadFile(name)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	own := spdxPackage{
		Name: filepath.Base(name), ID: spdxID("command", filepath.Base(name)), Version: info.Main.Version, Purpose: "APPLICATION",
		Checksum: []checksum{{"SHA256", hex.EncodeToString(sum[:])}},
		Refs:     purl("pkg:golang/" + info.Path),
	}
	d.add(own, imageID)
	version := strings.TrimPrefix(info.GoVersion, "go")
	d.add(spdxPackage{Name: "go", ID: spdxID("go", "std", version), Version: version, Refs: purl("pkg:golang/std@" + url.PathEscape(version))}, own.ID)
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		d.add(spdxPackage{
			Name: m.Path, ID: spdxID("go", m.Path, m.Version), Version: m.Version,
			Refs: purl(fmt.Sprintf("pkg:golang/%s@%s", m.Path, url.QueryEscape(m.Version))),
		}, own.ID)
	}
	return nil
}

func purl(locator string) []ref { return []ref{{"PACKAGE-MANAGER", "purl", locator}} }

var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]`)

// spdxID makes an identifier of words: letters, digits, dots and dashes only. What
// else there is is written as its code, so that two names stay two.
func spdxID(words ...string) string {
	return "SPDXRef-" + notInID.ReplaceAllStringFunc(strings.Join(words, "-"), func(s string) string { return fmt.Sprintf(".%x.", s) })
}

// encode puts all in order and names the document by its content: a namespace must
// be that of one document alone.
func (d *document) encode() ([]byte, error) {
	slices.SortFunc(d.Packages, func(a, b spdxPackage) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(d.Relationships, func(a, b relationship) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	d.Namespace = ""
	text, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	d.Namespace = fmt.Sprintf("https://spdx.org/spdxdocs/%s-%x", url.PathEscape(d.Name), sum[:16])
	text, err = json.MarshalIndent(d, "", " ")
	return append(text, '\n'), err
}
