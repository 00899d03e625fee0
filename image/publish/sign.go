package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// A key is what openssl's -inkey and -sign take: the name of a PEM file, or a
// pkcs11: URI (RFC 7512) of a token, with its PIN by pin-value or pin-source.
type key string

// providers are the flags with which openssl finds the key.
func (k key) providers() []string {
	if strings.HasPrefix(string(k), "pkcs11:") {
		return []string{"-provider", "pkcs11", "-provider", "default"}
	}
	return nil
}

// sign returns the signature of b: RSA PKCS #1 v1.5 or ECDSA (ASN.1), with SHA-256.
func (k key) sign(b []byte) ([]byte, error) {
	return openssl(b, append([]string{"dgst", "-sha256", "-sign", string(k)}, k.providers()...)...)
}

// cms returns a detached CMS SignedData of b (RFC 5652) without signed
// attributes, of which the time would be one.
func (k key) cms(b []byte, certificate string) ([]byte, error) {
	args := []string{"cms", "-sign", "-binary", "-noattr", "-md", "sha256", "-outform", "DER", "-signer", certificate, "-inkey", string(k)}
	return openssl(b, append(args, k.providers()...)...)
}

func openssl(in []byte, args ...string) ([]byte, error) {
	cmd := exec.Command("openssl", args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("openssl %s: %w: %s", args[0], err, bytes.TrimSpace(complaint.Bytes()))
	}
	if out.Len() == 0 {
		return nil, fmt.Errorf("openssl %s: wrote no signature", args[0])
	}
	return out.Bytes(), nil
}

// writeAll writes files that all can read.
func writeAll(files map[string][]byte) error {
	for name, b := range files {
		if err := os.WriteFile(name, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
