// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/check"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/scan"
)

var errDifferent = errors.New("the snapshot is not what the compilers or the golden layouts say")

type checkOptions struct {
	facts, headers, generated, golden string
	compilers                         string // commands, separated by commas
	update                            bool
}

// runCheck has every compiler compare the snapshot with the real headers and
// with the C declarations that the bindings are compiled with.
func runCheck(o checkOptions) error {
	if o.headers == "" {
		return errors.New("check needs -headers")
	}
	in, err := emit.Load(o.facts)
	if err != nil {
		return err
	}
	verbs := func(header string) bool { return in.Home(header) == "libibverbs" }
	all := []check.Declarations{
		{
			Name: "headers of " + in.API.Version, Source: filepath.Join(o.facts, "umbrella.h"),
			Include: scan.IncludeDir(o.headers), Macros: true,
		},
		{Name: "librdmacm/abi.h", Source: filepath.Join(o.generated, "librdmacm", "abi.h")},
		{Name: "libibverbs/abi.h", Source: filepath.Join(o.generated, "libibverbs", "abi.h"), Has: verbs},
	}
	golden := check.Golden{Dir: o.golden, API: in.API, Home: in.Home, Update: o.update}
	compared, different, agree := 0, 0, true
	for command := range strings.SplitSeq(o.compilers, ",") {
		cc, err := check.Find(strings.Fields(command)...)
		if err != nil {
			return err
		}
		facts, err := check.Facts(in.API, cc.Arch)
		if err != nil {
			return err
		}
		fmt.Printf("%s, linux/%s\n", cc, cc.Arch.Name)
		before := different
		for _, declarations := range all {
			result, err := check.Compare(cc, facts, declarations)
			if err != nil {
				return err
			}
			fmt.Printf("  %-18s %s\n", declarations.Name, result)
			for _, line := range result.Different {
				fmt.Println("    " + line)
			}
			compared += result.Total()
			different += len(result.Different)
		}
		if different > before { // then the golden layouts would be no better
			continue
		}
		stale, err := golden.Check(cc.Arch)
		if err != nil {
			return err
		}
		for _, line := range stale {
			fmt.Println("  " + line)
		}
		agree = agree && len(stale) == 0
	}
	fmt.Printf("total: %d comparisons, %d differ\n", compared, different)
	if different > 0 || !agree {
		return errDifferent
	}
	return nil
}
