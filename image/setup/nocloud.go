package setup

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"gopkg.in/yaml.v3"
)

// The NoCloud data source of cloud-init, as far as it fits a box whose root
// cannot be written: files below /etc/edge, ssh keys and the host name. Nothing
// of it is executed.

// maxUserData bounds each file of NoCloud, in bytes.
const maxUserData = 2 << 20

// cloudConfig is what is read of a user-data that begins with #cloud-config.
// Other keys are for other kinds of machines and are named in a note.
type cloudConfig struct {
	WriteFiles []writeFile `yaml:"write_files"`
	Keys       []string    `yaml:"ssh_authorized_keys"`
	Hostname   string      `yaml:"hostname"`
	FQDN       string      `yaml:"fqdn"`
}

type writeFile struct {
	Path     string `yaml:"path"`
	Content  string `yaml:"content"`
	Encoding string `yaml:"encoding"`
	Append   bool   `yaml:"append"`
}

// metaData is what is read of meta-data.
type metaData struct {
	LocalHostname string    `yaml:"local-hostname"`
	Hostname      string    `yaml:"hostname"`
	PublicKeys    yaml.Node `yaml:"public-keys"`
}

// ReadNoCloud reads the files of a NoCloud volume in dir. ok is false if it has
// no user-data that says anything.
func readNoCloud(dir string) (tree Tree, problems Problems, notes []string, ok bool, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, nil, false, fmt.Errorf("open volume: %w", err)
	}
	defer root.Close()
	files := map[string][]byte{}
	for _, name := range []string{"user-data", "meta-data", "network-config"} {
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && (!info.Mode().IsRegular() || info.Size() > maxUserData) {
			problems.at(name, "", "it is not a file of at most %d MiB", maxUserData>>20)
			continue
		}
		if err == nil {
			files[name], err = readRegular(root, name, info)
		}
		if err != nil {
			return nil, nil, nil, false, err
		}
	}
	if len(bytes.TrimSpace(files["user-data"])) == 0 {
		return nil, problems, nil, len(problems) > 0, nil
	}
	b := newBuilder()
	b.problems = problems
	notes = b.noCloud(files["user-data"], files["meta-data"])
	if len(files["network-config"]) > 0 {
		if len(b.tree.under("network")) == 0 {
			b.problems.at("network-config", "write files of systemd-networkd to /etc/edge/network by write_files", "it is not read, and there is no other word of the network")
		} else {
			notes = append(notes, "network-config is not read: the files of /etc/edge/network count")
		}
	}
	return b.tree, b.problems, notes, true, nil
}

// noCloud takes what user-data and meta-data say into b.
func (b *builder) noCloud(user, meta []byte) (notes []string) {
	var c cloudConfig
	first, _, _ := bytes.Cut(user, []byte("\n"))
	switch first := strings.TrimRight(string(first), " \t\r"); {
	case first == "#cloud-config":
		notes = b.cloudConfig(user, &c)
	case strings.HasPrefix(first, "#!"), strings.HasPrefix(first, "#include"), strings.HasPrefix(first, "#cloud-"), strings.HasPrefix(first, "## template:"),
		strings.HasPrefix(first, "Content-Type:"), strings.HasPrefix(first, "MIME-Version:"), bytes.HasPrefix(user, []byte{0x1f, 0x8b}):
		b.problems.at("user-data", "begin it with #cloud-config, or make it an edge.yaml", "this form is not taken: nothing is executed or fetched on this box")
		return nil
	default:
		b.put(configFile, user) // Parse tells whether it is one
	}
	var m metaData
	b.decode("meta-data", meta, &m)
	b.keys(c.Keys, publicKeys(&m.PublicKeys))
	for _, name := range []string{c.FQDN, c.Hostname, m.LocalHostname, m.Hostname} {
		if _, had := b.tree[hostnameFile]; name != "" && !had {
			b.put(hostnameFile, []byte(name+"\n"))
		}
	}
	return notes
}

func (b *builder) cloudConfig(user []byte, c *cloudConfig) (notes []string) {
	var all map[string]yaml.Node
	if !b.decode("user-data", user, &all) || !b.decode("user-data", user, c) {
		return nil
	}
	for _, key := range sortedKeys(all) {
		switch key {
		case "write_files", "ssh_authorized_keys", "hostname", "fqdn":
		default:
			notes = append(notes, fmt.Sprintf("user-data:%d: %s means nothing on this box", all[key].Line, clip(key)))
		}
	}
	// What is unpacked is counted whatever becomes of it: names (*a) make many large files
	// of few bytes, which would take the whole boot.
	unpacked := 0
	for i, f := range c.WriteFiles {
		from := fmt.Sprintf("user-data: write_files[%d]", i)
		if b.full || unpacked > maxTree {
			b.problems.at(from, "remove what is not needed", "here the reading ended: the files before have more than %d MiB, or are more than %d", maxTree>>20, maxFiles)
			return notes
		}
		unpacked += b.writeFile(from, f)
	}
	return notes
}

// writeFile takes a file, and returns how many bytes were looked at for it.
func (b *builder) writeFile(from string, f writeFile) int {
	name, ours := strings.CutPrefix(f.Path, Root+"/")
	switch {
	case !ours:
		b.problems.at(from, "only files below "+Root+" can be written", "%s is not below %s", clip(f.Path), Root)
		return 0
	case f.Append:
		b.problems.at(from, "give the whole content", "append is not taken")
		return 0
	case !b.room(name, 0):
		return 0
	}
	content, err := decodeContent(f.Encoding, f.Content)
	if err != nil {
		b.problems.at(from, "", "%s: %v", clip(f.Path), err)
	} else {
		b.put(name, content)
	}
	return len(f.Content) + len(content)
}

// decodeContent undoes the encodings of write_files. With an error it returns what it had
// until then.
func decodeContent(encoding, text string) ([]byte, error) {
	packed, based := false, false
	switch encoding {
	case "", "text/plain":
		return []byte(text), nil
	case "b64", "base64":
		based = true
	case "gz", "gzip":
		packed = true
	case "gz+b64", "gzip+b64", "gz+base64", "gzip+base64":
		packed, based = true, true
	default:
		return nil, errors.New("its encoding is none of b64, gz and gz+b64")
	}
	content := []byte(text)
	var err error
	if based {
		if content, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), "")); err != nil {
			return nil, errors.New("its content is not base64")
		}
	}
	if !packed {
		return content, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(content))
	if err == nil {
		content, err = io.ReadAll(io.LimitReader(z, maxFile+1))
	}
	if err != nil {
		return content, errors.New("its content is not whole gzip")
	}
	return content, nil
}

// decode reads YAML. Its errors name lines and never content: a secret may be in
// the next one.
func (b *builder) decode(name string, src []byte, v any) bool {
	err := yaml.Unmarshal(src, v)
	if err == nil {
		return true
	}
	var bad *yaml.TypeError
	if errors.As(err, &bad) {
		for _, text := range bad.Errors {
			at, what, _ := strings.Cut(text, ": ")
			// The library quotes the value; the type that was expected is enough.
			_, into, _ := strings.Cut(what, " into ")
			b.problems.at(name, "", "%s: it is of another type than expected (%s)", at, into)
		}
		return false
	}
	at := "it"
	if text := strings.TrimPrefix(err.Error(), "yaml: "); strings.HasPrefix(text, "line ") {
		at, _, _ = strings.Cut(text, ":")
	}
	b.problems.at(name, "", "%s cannot be read as YAML", at)
	return false
}

// keys adds ssh keys to the tree's, each once.
func (b *builder) keys(lists ...[]string) {
	had := map[string]bool{}
	var text strings.Builder
	text.Write(b.tree[keysFile])
	n := text.Len()
	for _, list := range lists {
		for _, key := range list {
			if key = strings.TrimSpace(key); key != "" && !had[key] && !strings.ContainsAny(key, "\n\r") {
				had[key] = true
				text.WriteString(key + "\n")
			}
		}
	}
	if text.Len() > n { // also if there is room for nothing else: rescue needs them
		b.tree[keysFile] = []byte(text.String())
	}
}

// publicKeys are the keys of meta-data: a list, or a map as the metadata service
// of EC2 has it, of strings or of maps with openssh-key.
func publicKeys(n *yaml.Node) []string {
	var list []string
	var named map[string]yaml.Node
	switch {
	case n.Kind == yaml.SequenceNode && n.Decode(&list) == nil:
	case n.Kind == yaml.MappingNode && n.Decode(&named) == nil:
		for _, name := range sortedKeys(named) {
			one := named[name]
			var text string
			var inner struct {
				Key string `yaml:"openssh-key"`
			}
			if one.Decode(&text) == nil {
				list = append(list, text)
			} else if one.Decode(&inner) == nil {
				list = append(list, inner.Key)
			}
		}
	case n.Kind == yaml.ScalarNode:
		list = strings.Split(n.Value, "\n")
	}
	return list
}
