// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

var (
	fuzzedPosition = regexp.MustCompile(`^(infiniband/(verbs|extra|libc)|umbrella|/\S+/shim/\S+)\.h:[1-9]\d*:[1-9]\d*: \S`)
	missingLine    = regexp.MustCompile(`add to the conventions a line such as: (.*)`)
)

// scanAnything scans a text. The lines that it finds missing in the
// conventions are added.
func scanAnything(t *testing.T, dir, text string) (*api.API, error) {
	known, err := conventions.Parse("", nil)
	require.NoError(t, err)
	out, err := scanText(t, dir, text, known)
	if err == nil {
		return out, nil
	}
	var lines []string
	for _, m := range missingLine.FindAllStringSubmatch(err.Error(), -1) {
		lines = append(lines, m[1])
	}
	if len(lines) == 0 {
		return nil, err
	}
	known, err = conventions.Parse("", []byte(strings.Join(lines, "\n")))
	require.NoError(t, err, "what the scanner asks for is not understood")
	return scanText(t, dir, text, known)
}

// requireUnderstood shows that a text either gives errors with positions, or a
// snapshot that has every name of the text and that comes back when it is
// written as C again.
func requireUnderstood(t *testing.T, dir, text string) {
	first, err := scanAnything(t, dir, text)
	if err != nil {
		require.NotContains(t, err.Error(), "finds no end")
		for line := range strings.Lines(err.Error()) {
			require.Regexp(t, fuzzedPosition, line)
		}
		return
	}
	if !strings.Contains(text, "include") {
		require.Empty(t, lost(t, text, first), text)
	}
	before := marshal(t, first)
	loaded := new(api.API)
	require.NoError(t, json.Unmarshal([]byte(before), loaded))
	require.Equal(t, before, marshal(t, loaded))

	again, err := scanAnything(t, dir, render(first))
	require.NoError(t, err, render(first))
	forgetSpelling(first)
	forgetSpelling(again)
	require.Equal(t, marshal(t, first), marshal(t, again))
}

// headerTexts returns the headers of a folder in testdata.
func headerTexts(t testing.TB, folder string) []string {
	files, err := filepath.Glob(filepath.Join("testdata", folder, "*.h"))
	require.NoError(t, err)
	var texts []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		texts = append(texts, string(text))
	}
	return texts
}

// FuzzScan is about any text.
func FuzzScan(f *testing.F) {
	for _, text := range headerTexts(f, "good") {
		f.Add(text)
	}
	for i, text := range headerTexts(f, "bad") {
		if i%6 == 0 && len(text) < 1000 { // go test -fuzz runs all of them first
			f.Add(text)
		}
	}
	dir := headerFolder(f)
	f.Fuzz(func(t *testing.T, text string) { requireUnderstood(t, dir, text) })
}

// inserted are the words that FuzzEdit puts in.
var inserted = []string{
	"*", "(", ")", "{", "}", "[", "]", ";", ",", ":", "=", "#", "...", "0", "-1", "1u", "'c'", `"s"`, "a", "s",
	"struct", "union", "enum", "int", "long", "char", "float", "void", "const", "volatile", "_Atomic", "_Bool", "__int128",
	"static", "inline", "extern", "typedef", "return", "sizeof", "_Alignas(8)", "_Static_assert(1, \"\");", "__typeof__(int)",
	"__attribute__((packed))", "__attribute__((unused))", `__asm__("a")`, "({ })", "[0]", ":3", "(void)", "double", "typedef struct { int z; } z;", "typedef int", "__attribute__((aligned(8)))", "__attribute__((packed, aligned(2)))",
	`_Pragma("pack(1)")`, "\n#pragma pack(1)\n", "\n#pragma pack(push, 2)\n", "\n#pragma pack(pop)\n", "\n#define a 1.5\n", "1LL << 40", "[]", "struct s { int a; }",
	"\\\n", "\n#define a 1\n", "\n#undef NUMBER\n", "\n#if 1\n", "\n#else\n", "\n#endif\n", "\n#pragma once\n",
}

// edit changes one word of a text: it goes, comes twice, or another is put
// before it.
func edit(text string, where uint16, how byte) string {
	all := wordsIn(text)
	at := int(where) % len(all)
	switch n := int(how) % (len(inserted) + 2); n {
	case 0:
		all[at] = ""
	case 1:
		all[at] += " " + all[at]
	default:
		all[at] = " " + inserted[n-2] + " " + all[at]
	}
	return strings.Join(all, "")
}

// FuzzEdit is about headers that were right before up to two changes.
func FuzzEdit(f *testing.F) {
	headers := headerTexts(f, "good")
	f.Add(byte(0), uint16(20), byte(0), uint16(30), byte(1))
	f.Add(byte(1), uint16(50), byte(2), uint16(60), byte(18))
	dir := headerFolder(f)
	f.Fuzz(func(t *testing.T, header byte, where uint16, how byte, where2 uint16, how2 byte) {
		text := edit(headers[int(header)%len(headers)], where, how)
		requireUnderstood(t, dir, edit(text, where2, how2))
	})
}

func marshal(t *testing.T, a *api.API) string {
	text, err := a.Marshal()
	require.NoError(t, err)
	return string(text)
}

// forgetSpelling takes out what render does not bring back: the headers that
// were included, the guards of inline functions, and the words of bodies and
// of macros without a value.
func forgetSpelling(a *api.API) {
	a.Headers = nil
	for _, f := range a.Functions {
		switch {
		case f.Inline == nil:
		case f.Inline.Guard != "":
			f.Inline = new(api.Inline)
		default:
			f.Inline.Body = ""
		}
	}
	for _, m := range a.Unvalued {
		m.Body = ""
	}
}
