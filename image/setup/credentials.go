package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// given is where the systemd credentials of a box are.
type given struct {
	// dirs are what a unit was given ($CREDENTIALS_DIRECTORY), then what the system
	// was; esp is the folder of the EFI partition for systemd-stub ("": none).
	dirs []string
	esp  string
	// later says that this is not the first look of the boot: the partition may have
	// been written to since, and what the system was given of it (booted, names) is old.
	later  bool
	booted []string
}

// read returns the credentials edge.* by name. One that is in two places is taken
// from the first of them. onESP are the names on the EFI partition.
func (g given) read() (found map[string][]byte, onESP []string, err error) {
	esp, system := map[string][]byte{}, map[string][]byte{}
	for _, dir := range g.dirs {
		err = errors.Join(err, readCredentials(dir, "", system))
	}
	if g.esp != "" {
		err = errors.Join(err, readCredentials(g.esp, ".cred", esp))
	}
	onESP = sortedKeys(esp)
	if !g.later || g.esp == "" {
		maps.Copy(esp, system)
		return esp, onESP, err
	}
	maps.DeleteFunc(system, func(name string, _ []byte) bool { return slices.Contains(g.booted, name) })
	maps.Copy(system, esp)
	return system, onESP, err
}

// credentials makes a tree of the credentials that were found. ok is false if there
// is none of ours.
func credentials(found map[string][]byte) (tree Tree, problems Problems, ok bool) {
	if len(found) == 0 {
		return nil, nil, false
	}
	single, bundle := newBuilder(), newBuilder()
	for _, name := range sortedKeys(found) {
		switch place, known := credentialPlace(name); {
		case name == "edge.bundle":
			bundle.bundle("credential "+name, found[name])
		case !known:
			single.problems.at("credential "+clip(name), "expected edge.yaml, edge.network.FILE, edge.authorized_keys, edge.hostname, edge.password, edge.secret.NAME, edge.health.NAME or edge.bundle", "nothing is known by this name")
		default:
			single.put(place, found[name])
		}
	}
	// What is given by itself counts before the bundle: the fleet's bundle, and
	// the key of this node beside it.
	for name, content := range single.tree {
		bundle.tree[name] = content
	}
	return bundle.tree, slices.Concat(bundle.problems, single.problems), true
}

// credentialPlace is where the content of a credential stands in a tree.
func credentialPlace(name string) (place string, ok bool) {
	rest, _ := strings.CutPrefix(name, "edge.")
	if slices.Contains([]string{"yaml", keysFile, hostnameFile, passwordFile}, rest) {
		if rest == "yaml" {
			rest = configFile
		}
		return rest, true
	}
	for prefix, dir := range map[string]string{"network.": "network", "secret.": "secrets", "health.": "health.d"} {
		if file, cut := strings.CutPrefix(rest, prefix); cut && file != "" {
			return path.Join(dir, file), true
		}
	}
	return "", false
}

// readCredentials adds the credentials edge.* in dir to found, without the suffix
// that their names have there. A folder that is not there has none.
func readCredentials(dir, suffix string, found map[string][]byte) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read credentials: %w", err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return fmt.Errorf("read credentials: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if _, had := found[name]; had || !ok || !strings.HasPrefix(name, "edge.") {
			continue
		}
		info, err := root.Lstat(e.Name())
		if err != nil {
			return fmt.Errorf("read credentials: %w", err)
		}
		if !info.Mode().IsRegular() {
			continue
		}
		content, err := readRegular(root, e.Name(), info)
		if err != nil {
			return err
		}
		found[name] = content
	}
	return nil
}
