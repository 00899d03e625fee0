// Command publish makes what leaves the build beside the disk image: the payload
// of an update with its signed manifest, the files that enrol the keys of Secure
// Boot, and the list of what is in the image (SPDX). It also looks through the
// image for what must not be in it: secrets, and what is one box's own.
//
// It owns how these files are made; image/slot owns the form of the manifest. All it writes is a function of its input: no clock, no random numbers
// (an ECDSA signature is the exception). It never sees a private key: openssl
// signs, with a key in a file or in a PKCS#11 token, and zstd packs.
//
// Process: image/build.sh, in the tools root. No box has it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

const usage = `usage: publish payload -version V -profile P -uki FILE -root FILE -verity FILE -key KEY -cert FILE -out DIR [-esp BYTES] [-commit C] [-time UNIX]
       publish enrol -key KEY -cert FILE -next FILE -out DIR [-time UNIX]
       publish scan -root DIR -esp DIR
       publish sbom -name NAME -packages FILE -out FILE [-commit C] [-time UNIX] BINARY...

KEY is a PEM file or a pkcs11: URI. UNIX is the time of the commit, in seconds.
`

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "publish:", err)
		os.Exit(1)
	}
}

// run does one verb; what is wrong with the flags is explained on stderr.
func run(args []string, stderr io.Writer) error {
	verbs := map[string]func([]string, io.Writer) error{"payload": runPayload, "enrol": runEnrol, "sbom": runSBOM, "scan": runScan}
	if len(args) == 0 || verbs[args[0]] == nil {
		fmt.Fprint(stderr, usage)
		return errors.New("want a verb: payload, enrol, scan or sbom")
	}
	return verbs[args[0]](args[1:], stderr)
}

// flags returns the flags of a verb. -time is one of all.
func flags(verb string, stderr io.Writer) (set *flag.FlagSet, at *int64) {
	set = flag.NewFlagSet("publish "+verb, flag.ContinueOnError)
	set.SetOutput(stderr)
	return set, set.Int64("time", 0, "what counts as now, in seconds since 1970")
}

// parse reads the flags. Those that are named must be given.
func parse(set *flag.FlagSet, args []string, must ...string) error {
	if err := set.Parse(args); err != nil {
		return err
	}
	for _, name := range must {
		if set.Lookup(name).Value.String() == "" {
			return fmt.Errorf("%s: -%s is missing", set.Name(), name)
		}
	}
	return nil
}

func stamp(seconds int64) time.Time { return time.Unix(seconds, 0).UTC() }
