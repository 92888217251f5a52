// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"modernc.org/cc/v4"
)

// packs holds the settings of #pragma pack, which cc does not apply. A setting
// holds for the structs up to the next setting in the same file. A setting that
// is still in effect where another file is included, or where its own file
// ends, is rejected.
type packs struct {
	settings []packing
	stack    []int64
	current  int64 // current setting; 0 if none is in effect
}

// packing is a setting that begins at the position of a pragma.
type packing struct {
	problem
	pack int64
}

// obey applies a pragma to the settings.
func (p *packs) obey(words []cc.Token) error {
	at := words[0].Position()
	var text strings.Builder
	for _, w := range words[1:] {
		text.WriteString(strings.TrimSpace(w.SrcStr()))
	}
	refused := fmt.Errorf("%v: #pragma pack%s cannot be represented", at, text.String())
	inside, ok := strings.CutPrefix(text.String(), "(")
	inside, closed := strings.CutSuffix(inside, ")")
	if !ok || !closed {
		return refused
	}
	if n := len(p.settings); n > 0 && p.current > 0 && p.settings[n-1].file != at.Filename {
		return fmt.Errorf("%v: #pragma pack of %s is in effect here", at, p.settings[n-1].file)
	}
	for i, word := range strings.Split(inside, ",") {
		n, err := strconv.ParseInt(word, 0, 64)
		switch {
		case word == "push" && i == 0:
			p.stack = append(p.stack, p.current)
		case word == "pop" && inside == "pop" && len(p.stack) > 0:
			p.current = p.stack[len(p.stack)-1]
			p.stack = p.stack[:len(p.stack)-1]
		case inside == "":
			p.current = 0
		case err == nil && n > 0 && n <= 16 && n&(n-1) == 0:
			p.current = n
		default:
			return refused
		}
	}
	p.settings = append(p.settings, packing{problem{at.Filename, at.Line, at.Column, ""}, p.current})
	return nil
}

// at returns the setting for a struct at a line of a file, or 0.
func (p *packs) at(file string, line int) int64 {
	for _, s := range slices.Backward(p.settings) {
		if s.file == file && s.line < line {
			return s.pack
		}
	}
	return 0
}

// unbalanced returns a problem if a setting is in effect at the end of a file.
func (p *packs) unbalanced() []problem {
	for i, s := range p.settings {
		last := i == len(p.settings)-1 || p.settings[i+1].file != s.file
		if last && s.pack > 0 {
			s.text = "#pragma pack is in effect at the end of the header"
			return []problem{s.problem}
		}
	}
	return nil
}

// effective returns the setting that is in effect, if any.
func (p *packs) effective() (problem, bool) {
	if p.current == 0 || len(p.settings) == 0 {
		return problem{}, false
	}
	return p.settings[len(p.settings)-1].problem, true
}
