// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// NotFound is part of the error of a scan that has not found a header.
const NotFound = "include file not found"

// problem is an error in the headers, with its position.
type problem struct {
	file         string
	line, column int
	text         string
}

func (p problem) Error() string { return fmt.Sprintf("%s:%d:%d: %s", p.file, p.line, p.column, p.text) }

// report returns the problems as one error, in the order of their positions and
// without duplicates. It returns nil if there are none.
func report(all []problem) error {
	slices.SortFunc(all, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column),
			cmp.Compare(a.text, b.text))
	})
	var errs []error
	for _, p := range slices.Compact(all) {
		errs = append(errs, p)
	}
	return errors.Join(errs...)
}

var (
	positioned = regexp.MustCompile(`^(\S.*?):(\d+):(\d+): (.*)$`)
	// origin matches the place in cc's own source that cc adds to an error.
	origin = regexp.MustCompile(`\s*\((\w+\.go:\d+:\w*[: ]*)+\)`)
)

// problemsOf splits cc's error into problems. It leaves out errors without a
// position, which follow from others or are about the end of the input.
func problemsOf(err error) []problem {
	var all []problem
	for line := range strings.Lines(err.Error()) {
		line, isLacking := strings.CutPrefix(strings.TrimSpace(line), lacking)
		m := positioned.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		p := problem{file: m[1], text: plain(m[4])}
		if isLacking {
			p.text = beyond
		}
		p.line, _ = strconv.Atoi(m[2]) // the pattern has digits only
		p.column, _ = strconv.Atoi(m[3])
		all = append(all, p)
	}
	return all
}

// unplaced returns the text of an error of cc without a position if gen has
// words for it, and otherwise "".
func unplaced(err error) string {
	text := strings.TrimPrefix(err.Error(), "-: ")
	if in := plain(text); in != text {
		return in
	}
	return ""
}

// lacking begins errors of cc about what it does not do. The position follows
// it, or precedes it.
const lacking = "TODO "

const beyond = "this is beyond the C parser"

const tooFar = "macros expand too far, or headers include each other without end"

// plain returns the text of an error of cc in words for users of gen.
func plain(text string) string {
	text = strings.TrimRight(origin.ReplaceAllString(text, ""), ": ")
	switch {
	case strings.HasPrefix(text, "macro expansion limit exceeded"):
		return tooFar
	case strings.HasPrefix(text, lacking):
		return beyond
	}
	return text
}
