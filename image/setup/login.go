package setup

import (
	"bytes"
	"regexp"
	"strings"

	"golang.org/x/crypto/ssh"
)

// maxKeyLines bounds a file of ssh keys.
const maxKeyLines = 512

// checkKeys judges authorized_keys (sshd(8)). good has the lines that can be
// used: in rescue, one wrong line must not lock everybody out.
func checkKeys(src []byte) (good []byte, problems Problems) {
	n := 0
	for line := range bytes.Lines(src) {
		n++
		line = bytes.TrimSpace(line)
		if n > maxKeyLines {
			problems.at(keysFile, "", "it has more than %d lines", maxKeyLines)
			break
		}
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if why := badKey(line); why != "" {
			problems = append(problems, Problem{File: keysFile, Line: n, Message: why, Remedy: "expected a line as in ~/.ssh/id_ed25519.pub"})
			continue
		}
		good = append(append(good, line...), '\n')
	}
	if n == 0 || len(good) == 0 && len(problems) == 0 {
		problems.at(keysFile, "leave the file out if nobody is to log in by ssh", "it has no key")
	}
	return good, problems
}

func badKey(line []byte) string {
	if bytes.Contains(line, []byte("PRIVATE KEY")) {
		return "this is a private key, which never leaves its owner"
	}
	if _, _, _, rest, err := ssh.ParseAuthorizedKey(line); err != nil || len(rest) > 0 {
		return "it is not the public key of ssh"
	}
	return ""
}

// crypts are the hashes that libxcrypt of Debian 13 checks, by their prefix
// (crypt(5)), without those that are broken by now.
var crypts = regexp.MustCompile(`^\$(y|gy|7|6|5|2b|2y)\$[./A-Za-z0-9$=,]+$`)

// Of a hash, in bytes.
const shortestCrypt, longestCrypt = 11, 504

// checkPassword judges the hash of root's password for the consoles.
func checkPassword(src []byte) (hash string, problems Problems) {
	hash = strings.TrimRight(string(src), "\r\n")
	if len(hash) < shortestCrypt || len(hash) > longestCrypt || !crypts.MatchString(hash) {
		// Not shown: it may be the password itself.
		problems.at(passwordFile, "make one with: mkpasswd -m yescrypt, or openssl passwd -6", "it is not one line with a hash of crypt(3)")
		return "", problems
	}
	return hash, nil
}

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// longestLabel is in bytes.
const longestLabel = 63

// checkHostname judges the name of the box (hostname(7), RFC 1123 section 2.1).
func checkHostname(src []byte) (name string, problems Problems) {
	name = strings.TrimSpace(string(src))
	ok := len(name) <= 64
	for _, one := range strings.Split(strings.ToLower(name), ".") {
		ok = ok && len(one) <= longestLabel && label.MatchString(one)
	}
	if !ok {
		problems.at(hostnameFile, "", "expected one line with a name of at most 64 of a-z, 0-9, - and .")
		return "", problems
	}
	return name, nil
}
