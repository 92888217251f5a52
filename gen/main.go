// Gen makes the bindings in generated/ from rdma-core's C headers.
//
//	go run ./gen scan -headers DIR -version V   C headers -> headers/api/V.json
//	go run ./gen emit                           the newest snapshot -> generated/
//	go run ./gen check -headers DIR             a C compiler agrees with the snapshot and the golden layouts
//	go run ./gen coverage                       what is bound, and what is not and why
//
// It is run from the top of the repository, by go generate and make.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/check"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/scan"
)

// newest is the version that the bindings are made from.
const newest = "65.0"

const usage = "usage: gen scan -headers DIR -version V | gen emit | gen check -headers DIR | gen coverage"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet("gen "+args[0], flag.ContinueOnError)
	facts := flags.String("facts", "headers", "folder with the conventions, the shims and the snapshots")
	var command func() error
	switch args[0] {
	case "scan":
		headers := flags.String("headers", "", "folder with the C headers, or one that has them in usr/include")
		version := flags.String("version", "", "rdma-core version of the headers")
		command = func() error { return runScan(*facts, *headers, *version) }
	case "emit":
		out := flags.String("out", "generated", "folder to write to")
		command = func() error { return runEmit(*facts, *out) }
	case "check":
		headers := flags.String("headers", "", "folder with the C headers that the snapshot was made from")
		cc := flags.String("cc", "cc", "C compiler to ask")
		golden := flags.String("golden", filepath.Join("tests", "golden"), "folder with the layouts that Go is tested against")
		update := flags.Bool("update", false, "write what the compiler says to the golden folder")
		command = func() error { return runCheck(*facts, *headers, *cc, *golden, *update) }
	case "coverage":
		command = func() error { return runCoverage(*facts) }
	default:
		return fmt.Errorf("no command %q; %s", args[0], usage)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%s does not take %q", args[0], flags.Arg(0))
	}
	return command()
}

func runScan(facts, headers, version string) error {
	if headers == "" || version == "" {
		return errors.New("scan needs -headers and -version")
	}
	known, err := conventions.Load(filepath.Join(facts, "conventions.txt"))
	if err != nil {
		return err
	}
	snapshot, err := scan.Scan(scan.Options{
		Headers: headers, Shim: filepath.Join(facts, "shim"), Source: filepath.Join(facts, "umbrella.h"),
		Version: version, Known: known,
	})
	if err != nil {
		return err
	}
	text, err := snapshot.Marshal()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(facts, "api", version+".json"), text, 0o644)
}

func runEmit(facts, out string) error {
	in, err := input(facts)
	if err != nil {
		return err
	}
	return emit.Emit(in, out)
}

func runCoverage(facts string) error {
	in, err := input(facts)
	if err != nil {
		return err
	}
	return emit.Coverage(in, os.Stdout)
}

// runCheck compares the snapshot and the golden layouts with what a C compiler
// makes of the real headers.
func runCheck(facts, headers, cc, golden string, update bool) error {
	if headers == "" {
		return errors.New("check needs -headers")
	}
	in, err := input(facts)
	if err != nil {
		return err
	}
	report, err := check.Run(in.API, cc, filepath.Join(facts, "umbrella.h"), scan.IncludeDir(headers), emit.Home)
	if err != nil {
		return err
	}
	different := report.Different
	for name, text := range report.Layouts {
		path := filepath.Join(golden, name+".layout")
		if update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				return err
			}
		}
		if have, err := os.ReadFile(path); err != nil {
			return err
		} else if string(have) != text {
			different = append(different, path+" is not what the compiler says; check -update rewrites it")
		}
	}
	for _, d := range different {
		fmt.Println(d)
	}
	fmt.Printf("compared %d facts of %d declarations with %s: %d different\n", report.Compared,
		len(in.API.Structs)+len(in.API.Enums)+len(in.API.Macros), cc, len(different))
	if len(different) > 0 {
		return errors.New("the compiler does not agree")
	}
	return nil
}

func input(facts string) (emit.Input, error) {
	var in emit.Input
	var err error
	if in.API, err = api.Load(filepath.Join(facts, "api", newest+".json")); err != nil {
		return in, err
	}
	if in.Known, err = conventions.Load(filepath.Join(facts, "conventions.txt")); err != nil {
		return in, err
	}
	in.Strings, err = conventions.LoadStrings(filepath.Join(facts, "strings.txt"))
	return in, err
}
