// SPDX-License-Identifier: Apache-2.0

// Gen makes the bindings in generated/ from rdma-core's C headers.
//
//	go run ./gen scan -headers DIR -version V   C headers -> headers/api/V.json
//	go run ./gen propose -headers DIR -version V   the lines that conventions of new headers lack
//	go run ./gen emit                           the newest snapshot -> generated/ and softroce/internal
//	go run ./gen check -headers DIR             C compilers agree with the snapshot and the golden layouts
//	go run ./gen coverage                       what is bound, and what is not and why
//	go run ./gen diff A B                       what changed from one snapshot to another
//	go run ./gen decide A B                     what a person must say of B's new names
//	gen bind -header FILE -library SONAME -into DIR   a package in another module
//
// It is run from the top of the repository, by go generate and make. The exit
// status is 1 if check finds a difference, coverage something unexplained, diff
// an ABI break or decide something undecided, and 2 for any other error.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/verbena-go/verbena/gen/internal/bind"
	"github.com/verbena-go/verbena/gen/internal/emit"
)

const usage = "usage: gen scan -headers DIR -version V | gen propose -headers DIR -version V | gen emit | gen check -headers DIR | gen coverage | gen diff [-json] A B | gen decide A B | gen bind -header FILE -library SONAME -into DIR"

const libcUsage = "folder with musl's and the kernel's headers, which stand in for those of libc's that the facts have no shim for"

const baseUsage = "draft of the headers that those of the folder of facts build on; without it, their snapshot of the version"

func main() {
	if os.Getenv("GOGC") == "" {
		// A run is short and makes little garbage. A garbage collection
		// that starts four times less often saves a third of the
		// processor time.
		debug.SetGCPercent(400)
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		for _, found := range []error{errDifferent, bind.ErrUndecided, bind.ErrDifferent, emit.ErrUnexplained, errBreak, errUndecided} {
			if errors.Is(err, found) {
				os.Exit(1)
			}
		}
		os.Exit(2)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet("gen "+args[0], flag.ContinueOnError)
	facts := flags.String("facts", "headers", "folder with the conventions, the shims and the snapshots")
	var command func() error
	operands := 0
	switch args[0] {
	case "scan":
		headers := flags.String("headers", "", "folder with the C headers, or one that has them in usr/include and the libraries in usr/lib")
		version := flags.String("version", "", "rdma-core version of the headers")
		libc := flags.String("libc", filepath.Join(".cache", "libc"), libcUsage)
		draft := flags.String("draft", "", "file to write the snapshot to, without asking for conventions")
		base := flags.String("base", "", baseUsage)
		command = func() error { return runScan(*facts, *headers, *libc, *version, *draft, *base) }
	case "propose":
		headers := flags.String("headers", "", "folder with the C headers")
		libc := flags.String("libc", filepath.Join(".cache", "libc"), libcUsage)
		version := flags.String("version", "", "version of the headers")
		command = func() error { return runPropose(*facts, *headers, *libc, *version, os.Stdout, os.Stderr) }
	case "emit":
		out := flags.String("out", "generated", "folder to write the bindings to")
		skeleton := flags.String("skeleton", filepath.Join("softroce", "internal", "capi"), "folder to write the skeleton of a library to")
		libraries := flags.String("libraries", filepath.Join("softroce", "internal", "clib", "c"), "folder to write the libraries for programs that are not Go to")
		command = func() error { return runEmit(*facts, *out, *skeleton, *libraries) }
	case "check":
		var o checkOptions
		flags.StringVar(&o.headers, "headers", "", "folder with the C headers that the snapshot was made from")
		flags.StringVar(&o.libc, "libc", "", "folder with the kernel's headers, for those that the system lacks")
		flags.StringVar(&o.compilers, "cc", "cc", "C compilers to ask, separated by commas; each may have arguments")
		flags.StringVar(&o.generated, "generated", "generated", "folder with the bindings, whose C declarations are compared too")
		flags.StringVar(&o.golden, "golden", filepath.Join("tests", "golden"), "folder with the layouts that Go is tested against")
		flags.BoolVar(&o.update, "update", false, "write the layouts that the compilers agreed with to the golden folder")
		into := flags.String("into", "", "folder of a package of bind, to be compared with its header")
		include := flags.String("I", "", "folder with the header of bind's package, if the C compiler does not know it")
		command = func() error {
			if *into != "" {
				return bind.Check(bind.Options{Into: *into, Include: *include, Libc: o.libc, Compilers: o.compilers}, os.Stdout)
			}
			o.facts = *facts
			return runCheck(o)
		}
	case "coverage":
		command = func() error { return runCoverage(*facts) }
	case "bind":
		var o bind.Options
		flags.StringVar(&o.Header, "header", "", "C header, as a program includes it, or its path")
		flags.StringVar(&o.Include, "I", "", "folder in which programs look for the header, if the C compiler does not know it")
		flags.StringVar(&o.Library, "library", "", "soname of the C library, such as libnuma.so.1")
		flags.StringVar(&o.Into, "into", "", "folder of the package, in the module of the current folder")
		flags.StringVar(&o.Libc, "libc", "", "folder with Debian's packages musl-dev and linux-libc-dev, unpacked; without it, what is installed")
		flags.StringVar(&o.Compilers, "cc", "", "C compilers to ask besides cgo's, separated by commas; each may have arguments")
		command = func() error { return bind.Run(o, os.Stdout) }
	case "diff":
		asJSON := flags.Bool("json", false, "print JSON instead of Markdown")
		operands = 2
		command = func() error { return runDiff(*facts, flags.Arg(0), flags.Arg(1), *asJSON, os.Stdout) }
	case "decide":
		golden := flags.String("golden", filepath.Join("tests", "golden"), "folder with what C's string functions return")
		skeleton := flags.String("skeleton", filepath.Join("softroce", "internal", "capi"), "folder with the C functions of the device in user space")
		base := flags.String("base", "", baseUsage)
		operands = 2
		command = func() error {
			return runDecide(*facts, *golden, *skeleton, *base, flags.Arg(0), flags.Arg(1), os.Stdout)
		}
	default:
		return fmt.Errorf("gen has no command %q; %s", args[0], usage)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > operands {
		return fmt.Errorf("%s does not take %q", args[0], flags.Arg(operands))
	}
	return command()
}
