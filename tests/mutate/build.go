// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// build compiles the package's tests with all mutants that compile.
func (s *source) build(dir string) (*binary, error) {
	replace := map[string]string{filepath.Join(s.dir, "zz_mutants.go"): filepath.Join(dir, "zz_mutants.go")}
	if err := os.WriteFile(filepath.Join(dir, "zz_mutants.go"), s.runtime(), 0o600); err != nil {
		return nil, err
	}
	for name, f := range s.files {
		replace[f.path] = filepath.Join(dir, name)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		return nil, err
	}
	b := &binary{source: s, path: filepath.Join(dir, "mutants.test"), hits: filepath.Join(dir, "hits")}
	for {
		for name := range s.files {
			if err := os.WriteFile(filepath.Join(dir, name), s.mutated(name), 0o600); err != nil {
				return nil, err
			}
		}
		cmd := exec.Command("go", "test", "-c", "-vet=off", "-gcflags=-e", "-overlay", filepath.Join(dir, "overlay.json"), "-o", b.path, s.path)
		out, err := cmd.CombinedOutput()
		if err == nil {
			return b, nil
		}
		if !s.drop(out) {
			return nil, fmt.Errorf("%s does not compile:\n%s", s.path, out)
		}
	}
}

var compileError = regexp.MustCompile(`(?m)([^/\s]+\.go):(\d+):\d+: (.*)$`)

// drop drops the mutants on lines of which the compiler complains, and reports
// whether there are any.
func (s *source) drop(complaints []byte) (dropped bool) {
	for _, c := range compileError.FindAllStringSubmatch(string(complaints), -1) {
		line, _ := strconv.Atoi(c[2])
		missing := strings.Contains(c[3], "missing return")
		for _, m := range s.mutants {
			last := m.position.Line + strings.Count(m.source, "\n")
			hit := m.position.Line <= line && line <= last
			if missing { // it is the end of the function of which the compiler complains
				hit = m.returns && m.position.Line <= line && m.function == s.functionAt(c[1], line)
			}
			if m.file == c[1] && m.compiles && hit {
				m.compiles, dropped = false, true
			}
		}
	}
	return dropped
}

// functionAt returns the function whose last mutant is at or before a line.
func (s *source) functionAt(file string, line int) (name string) {
	for _, m := range s.mutants {
		if m.file == file && m.position.Line <= line {
			name = m.function
		}
	}
	return name
}

// binary is the compiled tests.
type binary struct {
	*source
	path, hits string
	short      bool
	spare      time.Duration // how much longer than three times without a mutant tests may take
}

// test is a test of the package.
type test struct {
	name    string
	took    time.Duration
	reaches map[int]bool // mutants
}

// survey runs each test without a mutant.
func (b *binary) survey(skip *regexp.Regexp) ([]*test, error) {
	list := exec.Command(b.path, "-test.list", "^(Test|Example|Fuzz)")
	list.Dir = b.dir
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests: %w", err)
	}
	var tests []*test
	for _, name := range strings.Fields(string(out)) {
		if skip.MatchString(name) {
			continue
		}
		if err := os.WriteFile(b.hits, nil, 0o600); err != nil {
			return nil, err
		}
		start := time.Now()
		text, err := b.run(surveyLimit, []string{"MUTATE_HITS=" + b.hits}, name)
		if err != nil {
			fmt.Fprintf(os.Stderr, "mutate: %s fails without a change, and is left out: %v\n%s", name, err, text)
			continue
		}
		t := &test{name: name, took: time.Since(start), reaches: map[int]bool{}}
		hits, err := os.ReadFile(b.hits)
		if err != nil {
			return nil, err
		}
		for _, hit := range strings.Fields(string(hits)) {
			n, err := strconv.Atoi(hit)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", b.hits, err)
			}
			t.reaches[n] = true
		}
		tests = append(tests, t)
	}
	slices.SortFunc(tests, func(a, b *test) int { return int(a.took - b.took) })
	return tests, nil
}

const (
	surveyLimit = 5 * time.Minute
	// quick is how long tests take that run together, before the others.
	quick = 300 * time.Millisecond
)

// try gives a mutant to the tests that reach it.
func (b *binary) try(m *mutant, tests []*test) (verdict, error) {
	var groups [][]*test
	var first, rest []*test
	for _, t := range tests {
		switch {
		case !t.reaches[m.number]:
		case t.took <= quick:
			first = append(first, t)
		default:
			rest = append(rest, t)
		}
	}
	if len(first) > 0 {
		groups = append(groups, first)
	}
	for _, t := range rest {
		groups = append(groups, []*test{t})
	}
	if len(groups) == 0 {
		return unreached, nil
	}
	for _, group := range groups {
		limit := b.spare
		var names []string
		for _, t := range group {
			limit += 3 * t.took
			names = append(names, t.name)
		}
		text, err := b.run(limit, []string{"MUTATE_NUMBER=" + strconv.Itoa(m.number)}, names...)
		_, exited := errors.AsType[*exec.ExitError](err)
		switch {
		case err == nil:
		case !exited && !errors.Is(err, context.DeadlineExceeded):
			return "", err
		case errors.Is(err, context.DeadlineExceeded), bytes.Contains(text, []byte("panic: test timed out")):
			return timedOut, nil
		default:
			return killed, nil
		}
	}
	return survived, nil
}

// run runs tests, until one fails.
func (b *binary) run(limit time.Duration, env []string, tests ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit+5*time.Second)
	defer cancel()
	args := []string{"-test.run", "^(" + strings.Join(tests, "|") + ")$", "-test.failfast", "-test.timeout", limit.String()}
	if b.short {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(ctx, b.path, args...)
	cmd.Dir, cmd.Env = b.dir, append(os.Environ(), env...)
	cmd.WaitDelay = time.Second // a child of a test may hold the pipe
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out, err
}
