package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
)

// guardKeyCommand makes a node's key; edged is not asked.
func (o *options) guardKeyCommand() *cobra.Command {
	out, show := "/etc/edge/node.key", ""
	c := &cobra.Command{
		Use: "key", Short: "Make the key of a node, and print its public half", Args: cobra.NoArgs,
		Long: "Make the Ed25519 key that signs what this node says to the others, and print the line for it in\n" +
			"fleet.nodes. Each node has its own; the file never leaves its box. An existing file is not replaced.\n" +
			"--show FILE prints that line for a key that exists.",
		RunE: func(*cobra.Command, []string) error {
			public, err := nodeKey(&out, show)
			if err != nil {
				return problem{err}
			}
			if o.output == "json" {
				return o.json(map[string]string{"file": out, "public_key": public.String()})
			}
			return o.write(fmt.Sprintf("public_key: %s\n", public))
		},
	}
	c.Flags().StringVar(&out, "out", out, "the new `file`, for node.key_file")
	c.Flags().StringVar(&show, "show", show, "make none: print the public half of the key in this `file`")
	c.MarkFlagsMutuallyExclusive("out", "show")
	return c
}

// nodeKey makes a key in the file out, or reads the one in show; then out is that file.
func nodeKey(out *string, show string) (edge.NodeKey, error) {
	if show == "" {
		return makeNodeKey(*out)
	}
	*out = show
	return publicHalf(show)
}

// publicHalf reads a key as package guard does, which would bring all of the gossip
// into this program.
func publicHalf(path string) (edge.NodeKey, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return edge.NodeKey{}, fmt.Errorf("read key: %w", err)
	}
	bad := fmt.Errorf("%s does not hold an Ed25519 key in PEM of PKCS#8; make one with: edgectl guard key --out FILE", path)
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" {
		return edge.NodeKey{}, bad
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	private, ok := key.(ed25519.PrivateKey)
	if err != nil || !ok {
		return edge.NodeKey{}, bad
	}
	return edge.NodeKey(private.Public().(ed25519.PublicKey)), nil
}

// makeNodeKey writes a new private key to a file that must not exist, for its
// owner only.
func makeNodeKey(path string) (edge.NodeKey, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return edge.NodeKey{}, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return edge.NodeKey{}, fmt.Errorf("make key: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return edge.NodeKey{}, fmt.Errorf("%s exists already and is not replaced: remove it first, or name another file with --out", path)
	}
	if err != nil {
		return edge.NodeKey{}, fmt.Errorf("make key: %w", err)
	}
	err = errors.Join(pem.Encode(f, &pem.Block{Type: "PRIVATE KEY", Bytes: der}), f.Sync(), f.Close())
	if err != nil {
		os.Remove(path) // half a key is of no use, and would be in the way
		return edge.NodeKey{}, fmt.Errorf("write key: %w", err)
	}
	return edge.NodeKey(public), nil
}
