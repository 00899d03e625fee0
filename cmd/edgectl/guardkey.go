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
	out := "/etc/edge/node.key"
	c := &cobra.Command{
		Use: "key", Short: "Make the key of a node, and print its public half", Args: cobra.NoArgs,
		Long: "Make the Ed25519 key that signs what this node says to the others, and print the line for it in\n" +
			"fleet.nodes. Each node has its own; the file never leaves its box. An existing file is not replaced.",
		RunE: func(*cobra.Command, []string) error {
			public, err := makeNodeKey(out)
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
	return c
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
