// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/check"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/scan"
)

var errDifferent = errors.New("the snapshot contradicts the compilers or the golden layouts")

type checkOptions struct {
	facts, headers, libc, generated, golden string
	compilers                               string // commands, separated by commas
	update                                  bool
}

// runCheck has every compiler compare the snapshot with the real headers and
// with the C declarations that the bindings are compiled with.
func runCheck(o checkOptions) error {
	if o.headers == "" {
		return errors.New("check needs the flag -headers with a folder")
	}
	folders, err := emit.Folders(o.facts)
	if err != nil {
		return err
	}
	total := comparison{agree: true}
	for _, folder := range folders {
		in, err := emit.Load(folder)
		if err != nil {
			return err
		}
		if err := o.compare(in, folder, &total); err != nil {
			return err
		}
	}
	fmt.Printf("total: %d comparisons, %d differ\n", total.compared, total.different)
	if total.different > 0 || !total.agree {
		return errDifferent
	}
	return nil
}

// comparison is the result of all comparisons.
type comparison struct {
	compared, different int
	agree               bool // whether the golden layouts match the snapshot
}

// declarations returns the C declarations with which the snapshot is compared:
// those of the headers, and those in the abi.h of each package.
func (o checkOptions) declarations(in emit.Input, facts string) []check.Declarations {
	home := func(names ...string) func(header string) bool {
		return func(header string) bool { return slices.Contains(names, in.Home(header)) }
	}
	source := func(l *conventions.Library) string { return filepath.Join(o.generated, l.Name, "abi.h") }
	read := check.Declarations{
		Name: "headers of " + in.API.Version, Source: filepath.Join(facts, "umbrella.h"),
		Include: scan.IncludeDir(o.headers), Macros: true,
	}
	if o.libc != "" {
		read.After = scan.IncludeDir(o.libc)
	}
	if in.Alone {
		all := []check.Declarations{read}
		for _, l := range in.Known.Own() {
			all = append(all, check.Declarations{Name: l.Name + "/abi.h", Source: source(l)})
		}
		return all
	}
	if in.Base == nil { // librdmacm's abi.h also has the declarations of libibverbs
		verbs, cm := conventions.Base[0], conventions.Base[1]
		return []check.Declarations{
			read, {Name: cm.Name + "/abi.h", Source: source(cm)}, {Name: verbs.Name + "/abi.h", Source: source(verbs), Has: home(verbs.Name)},
		}
	}
	all := []check.Declarations{read}
	all[0].Has = in.Known.Binds
	for _, l := range in.Known.Own() {
		all = append(all, check.Declarations{Name: l.Name + "/abi.h", Source: source(l), Has: home(conventions.Base[0].Name, l.Name)})
	}
	return all
}

// compare has each compiler check the snapshot of one folder of facts. If there
// are no differences, it compares the golden layouts, too.
func (o checkOptions) compare(in emit.Input, folder string, total *comparison) error {
	own := func(header string) string {
		if in.Base != nil && !in.Known.Binds(header) {
			return "" // another folder of facts has the header
		}
		return in.Home(header)
	}
	golden := check.Golden{Dir: o.golden, API: in.Whole(), Home: own, Update: o.update}
	for command := range strings.SplitSeq(o.compilers, ",") {
		cc, err := check.Find(strings.Fields(command)...)
		if err != nil {
			return err
		}
		facts, err := check.Facts(in.Whole(), cc.Arch)
		if err != nil {
			return err
		}
		fmt.Printf("%s, linux/%s\n", cc, cc.Arch.Name)
		for _, declarations := range o.declarations(in, folder) {
			result, err := check.Compare(cc, facts, declarations)
			if err != nil {
				return err
			}
			fmt.Printf("  %-18s %s\n", declarations.Name, result)
			for _, line := range result.Different {
				fmt.Println("    " + line)
			}
			total.compared += result.Total()
			total.different += len(result.Different)
		}
		if total.different > 0 { // the golden layouts are made from this snapshot
			continue
		}
		stale, err := golden.Check(cc.Arch)
		if err != nil {
			return err
		}
		for _, line := range stale {
			fmt.Println("  " + line)
		}
		total.agree = total.agree && len(stale) == 0
	}
	return nil
}
