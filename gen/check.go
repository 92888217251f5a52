package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/verbena-go/verbena/gen/internal/check"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/scan"
)

// runCheck compares the snapshot and the golden layouts with what a C compiler
// makes of the real headers.
func runCheck(facts, headers, cc, golden string, update bool) error {
	if headers == "" {
		return errors.New("check needs -headers")
	}
	in, err := emit.Load(facts)
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
