// SPDX-License-Identifier: Apache-2.0

// Mutate makes small changes to a package, one at a time, and runs the
// package's tests on each: a change that no test notices is a test that is
// missing, or code that does not matter.
//
// usage: go run ./tests/mutate [flags] PACKAGE
//
// All changes are compiled into one test binary, which an environment variable
// tells the one to make; nothing in the repository is written. Each test runs
// once without a change, to learn which changes it reaches; a change is given
// to those tests only. Changes are
//
//	remove     a statement is left out
//	negate     a condition or comparison is the contrary
//	force      an operand of && is true, or one of || false
//	boundary   < is <=, <= is <, > is >=, >= is >
//	arithmetic + is -, - is +
//
// Those that do not compile are left out. Tests that need a device run on that
// of VERBENA_DEVICE.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	var c config
	flag.StringVar(&c.files, "files", "", "regular expression: only `files` whose names match are changed")
	flag.StringVar(&c.skip, "skip", "^(TestSoak|TestScale)$", "regular expression: `tests` that do not run")
	flag.BoolVar(&c.short, "short", false, "run the tests with -short")
	flag.StringVar(&c.only, "lines", "", "make only changes whose place, such as conn.go:12, is among these, separated by `commas`")
	flag.IntVar(&c.every, "every", 1, "make every `nth` change only")
	flag.DurationVar(&c.spare, "spare", 10*time.Second, "how much longer tests may take than three times without a change")
	flag.BoolVar(&c.verbose, "v", false, "print the changes that a test notices, too")
	flag.Parse()
	if flag.NArg() != 1 || c.every < 1 {
		flag.Usage()
		os.Exit(2)
	}
	c.pkg = flag.Arg(0)
	if err := run(c); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

type config struct {
	pkg, files, skip, only string
	short, verbose         bool
	every                  int
	spare                  time.Duration
}

// verdict is what became of a change.
type verdict string

const (
	killed    verdict = "killed"
	timedOut  verdict = "time limit" // a test has hung
	survived  verdict = "survived"
	unreached verdict = "not reached" // by any test
)

func run(c config) error {
	files, err := regexp.Compile(c.files)
	if err != nil {
		return fmt.Errorf("-files: %w", err)
	}
	skip, err := regexp.Compile(cmp.Or(c.skip, "^$"))
	if err != nil {
		return fmt.Errorf("-skip: %w", err)
	}
	p, err := load(c.pkg, files)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b, err := p.build(dir)
	if err != nil {
		return err
	}
	b.short, b.spare = c.short, c.spare
	tests, err := b.survey(skip)
	if err != nil {
		return err
	}
	counts := map[verdict]int{}
	all := 0
	for _, m := range p.mutants {
		if !m.compiles || m.number%c.every != 0 || c.only != "" && !slices.Contains(strings.Split(c.only, ","), m.place()) {
			continue
		}
		v, err := b.try(m, tests)
		if err != nil {
			return err
		}
		all++
		counts[v]++
		if c.verbose || v != killed {
			fmt.Printf("%-11s %s\n", v, m)
		}
	}
	fmt.Printf("%s: %d changes, %d killed, %d at the time limit, %d survived, %d not reached\n",
		p.path, all, counts[killed], counts[timedOut], counts[survived], counts[unreached])
	return nil
}
