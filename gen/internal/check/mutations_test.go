// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// prelude declares what mutations use.
const prelude = `#include <stddef.h>
#include <stdint.h>
#include <linux/types.h>
struct mut_point { float x; double y; };
union mut_either { uint16_t word; uint8_t bytes[2]; };
enum mut_wide { MUT_WIDE = 1, MUT_WIDEST = 1ULL << 40 };
enum mut_small { MUT_SMALL, MUT_OTHER = 7 };
typedef uint32_t mut_number;
typedef struct { char c; short s; } __attribute__((packed)) mut_packed;
`

// mutant is a header that is being changed at random.
type mutant struct {
	*rand.Rand
	words []string
	first int      // the first word that may change
	names []string // names that the change declares
}

var headerWords = regexp.MustCompile(`"(?:\\.|[^"\\])*"|\w+|\s+|.`)

func (m *mutant) text() string { return strings.Join(m.words, "") }

func (m *mutant) one(texts ...string) string { return texts[m.IntN(len(texts))] }

func (m *mutant) scalar() string {
	return m.one("char", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned int", "long", "unsigned long", "long long", "float", "double",
		"_Bool", "uint8_t", "int16_t", "uint32_t", "int64_t", "size_t", "__be32", "__u64", "mut_number", "enum mut_small", "enum mut_wide")
}

// name makes one that the snapshot must have.
func (m *mutant) name() string {
	name := fmt.Sprintf("mut_%d", len(m.names))
	m.names = append(m.names, name)
	return name
}

func (m *mutant) member() string {
	n, bits := m.name(), 1+m.IntN(8)
	switch m.IntN(19) {
	case 0:
		return m.scalar() + " " + n + ";"
	case 1:
		return fmt.Sprintf("%s %s[%d][%d];", m.scalar(), n, 1+m.IntN(4), 1+m.IntN(4))
	case 2:
		return fmt.Sprintf("const %s *%s;", m.scalar(), n)
	case 3:
		return fmt.Sprintf("unsigned int %s : %d;", n, 1+m.IntN(32))
	case 4:
		return fmt.Sprintf("uint8_t %s : %d; uint8_t : 0; unsigned short %s : %d;", n, bits, m.name(), 2*bits)
	case 5:
		return fmt.Sprintf("long %s : %d; unsigned long : %d;", n, 1+m.IntN(64), 1+m.IntN(64))
	case 6:
		return fmt.Sprintf("_Bool %s : 1; char %s;", n, m.name())
	case 7:
		return fmt.Sprintf("enum mut_small %s : %d;", n, 3+m.IntN(20))
	case 8:
		return fmt.Sprintf("struct mut_point %s[%d];", n, 1+m.IntN(3))
	case 9:
		return fmt.Sprintf("%s (*%s)(struct mut_point p, float by, union mut_either *e);", m.one("void", "double", "struct mut_point", "mut_packed"), n)
	case 10:
		return fmt.Sprintf("struct { %s %s; uint16_t %s : %d; } %s;", m.scalar(), n, m.name(), bits, m.name())
	case 11:
		return fmt.Sprintf("union { %s %s; struct { uint64_t %s : %d; char %s; }; };", m.scalar(), n, m.name(), 5*bits, m.name())
	case 12:
		return fmt.Sprintf("%s %s __attribute__((aligned(%d)));", m.scalar(), n, 1<<m.IntN(6))
	case 13:
		return fmt.Sprintf("%s %s __attribute__((packed));", m.scalar(), n)
	case 14:
		return fmt.Sprintf("struct { char %s; %s %s; } __attribute__((packed)) %s;", n, m.scalar(), m.name(), m.name())
	case 15:
		return fmt.Sprintf("mut_packed %s; %s %s;", n, m.scalar(), m.name())
	case 16:
		return fmt.Sprintf("%s %s, *%s, %s[2];", m.scalar(), n, m.name(), m.name())
	case 17:
		return fmt.Sprintf("struct { uint32_t %s; %s %s[%s]; } %s;", n, m.scalar(), m.name(), m.one("", "0"), m.name())
	}
	return fmt.Sprintf("volatile %s %s;", m.scalar(), n)
}

func (m *mutant) parameters() string {
	return m.one("void", "struct mut_point p", "float f, double d", "union mut_either e, mut_packed p", "mut_number n, const char *text, ...", "enum mut_wide w",
		"int (*callback)(struct mut_point p)", "mut_packed list[3]")
}

func (m *mutant) typedef() string {
	n := m.name()
	switch m.IntN(9) {
	case 0:
		return fmt.Sprintf("typedef %s %s;", m.scalar(), n)
	case 1:
		return fmt.Sprintf("typedef %s %s[%d];", m.scalar(), n, 1+m.IntN(5))
	case 2:
		return fmt.Sprintf("typedef struct mut_point %s, *%s;", n, m.name())
	case 3:
		return fmt.Sprintf("typedef struct %s { %s } %s;", n, m.member(), m.name())
	case 4:
		return fmt.Sprintf("typedef union { %s %s } %s;", m.member(), m.member(), n)
	case 5:
		return fmt.Sprintf("typedef enum { %s = %d, %s } %s;", m.name(), m.IntN(100)-50, m.name(), n)
	case 6:
		return fmt.Sprintf("typedef %s %s(%s);", m.scalar(), n, m.parameters())
	case 7:
		return fmt.Sprintf("typedef %s (*%s)(%s);", m.one("void", "struct mut_point", "float"), n, m.parameters())
	}
	return fmt.Sprintf("typedef struct mut_opaque_%s %s;", n, n)
}

func (m *mutant) macro() string {
	n := m.name()
	switch m.IntN(6) {
	case 0:
		return fmt.Sprintf("#define %s \"%s\" %s\n", n, m.one("", `a\tb`, `\"quoted\"`, `\x41`, "é", `100%`), m.one("", `"more"`, `""`))
	case 1:
		return fmt.Sprintf("#define %s %s\n", n, m.one("1.5", "-2.25f", "(1 / 8.0)", "1e-10", "0x1.8p3", "(float)3", "1e300", ".5", "3 * 0.1"))
	case 2:
		return fmt.Sprintf("#define %s %s\n", n, m.one("(1 << 3)", "0x80000000", "-1LL", "'a'", "sizeof(struct mut_point)", "(uint8_t)300", "1ULL << 63", "~0u"))
	case 3:
		return fmt.Sprintf("#define %s %s\n", n, m.one("MUT_OTHER", "MUT_WIDEST", "(MUT_OTHER | 8)", "-MUT_OTHER", "MUT_WIDE - 2"))
	case 4:
		return fmt.Sprintf("#define %s %s\n", n, m.one("mut_point", "mut_small"))
	}
	return fmt.Sprintf("#define %s(x) ((x) + 1)\n", n)
}

func (m *mutant) enum() string {
	first := m.one("0", "-1", "1ULL << 63", "-1LL << 40", "0xffffffff", "0x100000000", "1u", "-0x7fffffff - 1", "0x7fffffffffffffff")
	return fmt.Sprintf("enum %s { %s = %s, %s = %s };", m.name(), m.name(), first, m.name(), m.one("3", "1 << 20", "MUT_OTHER + 1", "sizeof(int)"))
}

func (m *mutant) function() string {
	attribute := m.one("", "", " __attribute__((nothrow))", " __attribute__((no_such_attribute))", " __attribute__((nonnull, warn_unused_result))", " __attribute__((regparm(2)))")
	return fmt.Sprintf("%s %s(%s)%s;", m.one("int", "void", "float", "double", "struct mut_point", "union mut_either", "mut_packed", "enum mut_wide", "mut_number", "const char *"),
		m.name(), m.parameters(), attribute)
}

func (m *mutant) variable() string {
	return fmt.Sprintf("extern %s %s%s;", m.one(m.scalar(), "const char *const", "struct mut_point", "mut_packed", "void (*const *"), m.name(), m.one("", "[3]", "[]"))
}

// at puts a text behind a word.
func (m *mutant) at(i int, text string) { m.words[i] += " " + text + " " }

// pick returns the index of a word behind the prelude that fits.
func (m *mutant) pick(fits func(i int) bool) int {
	var all []int
	for i := m.first; i < len(m.words); i++ {
		if fits(i) {
			all = append(all, i)
		}
	}
	return all[m.IntN(len(all))]
}

// before returns the n-th word before i that is not blank.
func (m *mutant) before(i, n int) string {
	for i--; i >= 0; i-- {
		if strings.TrimSpace(m.words[i]) == "" {
			continue
		}
		if n--; n == 0 {
			return m.words[i]
		}
	}
	return ""
}

func isAggregate(word string) bool { return word == "struct" || word == "union" }

func (m *mutant) opens(i int) bool {
	return m.words[i] == "{" && (isAggregate(m.before(i, 1)) || isAggregate(m.before(i, 2)))
}

// closes reports whether a bracket ends a struct or union.
func (m *mutant) closes(i int) bool {
	return m.words[i] == "}" && m.before(i, 1) == ";"
}

// ends reports whether a declaration ends at i that is in no other.
func (m *mutant) ends(i int) bool {
	if m.words[i] != ";" {
		return false
	}
	depth := 0
	for _, word := range m.words[:i] {
		depth += strings.Count(word, "{") - strings.Count(word, "}")
	}
	return depth == 0 && i+1 < len(m.words) && strings.Contains(m.words[i+1], "\n")
}

func (m *mutant) is(words ...string) func(int) bool {
	return func(i int) bool { return slices.Contains(words, m.words[i]) }
}

// mutations has the kinds of changes.
var mutations = []struct {
	name   string
	change func(*mutant)
}{
	{"another scalar", func(m *mutant) {
		i := m.pick(m.is("char", "short", "int", "long", "float", "double", "uint8_t", "uint16_t", "uint32_t", "uint64_t"))
		m.words[i] = m.scalar()
	}},
	{"a first member", func(m *mutant) { m.at(m.pick(m.opens), m.member()) }},
	{"two first members", func(m *mutant) { m.at(m.pick(m.opens), m.member()+" "+m.member()) }},
	{"a last member", func(m *mutant) {
		i := m.pick(m.closes)
		m.words[i] = " " + m.member() + " " + m.words[i]
	}},
	{"a flexible array", func(m *mutant) {
		i := m.pick(m.closes)
		m.words[i] = fmt.Sprintf(" %s %s[]; %s", m.scalar(), m.name(), m.words[i])
	}},
	{"an attribute of a struct", func(m *mutant) {
		m.at(m.pick(m.closes), "__attribute__(("+m.one("packed", "aligned(2)", "aligned(16)", "packed, aligned(4)", "aligned", "deprecated", "may_alias", "no_such_attribute", "ms_struct",
			"transparent_union", "designated_init")+"))")
	}},
	{"an attribute of a member", func(m *mutant) {
		i := m.pick(func(i int) bool { return m.words[i] == ";" && !m.ends(i) })
		m.words[i] = " __attribute__((" + m.one("packed", "aligned(1)", "aligned(8)", "unused", "no_such_attribute", "mode(SI)", "vector_size(16)") + "));"
	}},
	{"an attribute of an enumerator", func(m *mutant) {
		i := m.pick(func(i int) bool { return m.words[i] == "}" && !m.closes(i) })
		m.words[i] = ", " + m.name() + " __attribute__((" + m.one("deprecated", "unavailable", "no_such_attribute") + ")) }"
	}},
	{"#pragma pack", func(m *mutant) {
		i := m.pick(m.ends)
		attribute := m.one("", "", "__attribute__((packed))", "__attribute__((aligned(16)))", "__attribute__((packed, aligned(2)))")
		m.words[i] = fmt.Sprintf(";\n#pragma pack(push, %d)\n%s %s { %s %s } %s;\n#pragma pack(pop)\n", 1<<m.IntN(5), m.one("struct", "struct", "union"), m.name(), m.member(),
			m.member(), attribute)
	}},
	{"_Pragma", func(m *mutant) {
		pragma := m.one("GCC diagnostic push", "GCC visibility push(default)", "pack(2)", "GCC poison x", "STDC FP_CONTRACT ON", "clang diagnostic push")
		m.at(m.pick(m.ends), "_Pragma(\""+pragma+"\")\nstruct "+m.name()+" { "+m.member()+" };")
	}},
	{"a struct", func(m *mutant) {
		m.at(m.pick(m.ends), m.one("struct ", "union ")+m.name()+" { "+m.member()+" "+m.member()+" "+m.member()+" };")
	}},
	{"a typedef", func(m *mutant) { m.at(m.pick(m.ends), m.typedef()) }},
	{"a variable", func(m *mutant) { m.at(m.pick(m.ends), m.variable()) }},
	{"an enum", func(m *mutant) { m.at(m.pick(m.ends), m.enum()) }},
	{"a function", func(m *mutant) { m.at(m.pick(m.ends), m.function()) }},
	{"a macro", func(m *mutant) { m.words[m.pick(m.ends)] = ";\n" + m.macro() }},
	{"a word less", func(m *mutant) {
		m.words[m.pick(func(i int) bool { return strings.TrimSpace(m.words[i]) != "" })] = ""
	}},
	{"a word twice", func(m *mutant) {
		i := m.pick(func(i int) bool { return strings.TrimSpace(m.words[i]) != "" })
		m.words[i] += " " + m.words[i]
	}},
	{"another number", func(m *mutant) {
		i := m.pick(func(i int) bool { _, err := strconv.Atoi(m.words[i]); return err == nil })
		m.words[i] = m.one("0", "1", "2", "3", "5", "8", "16", "31", "32", "33", "40", "63", "64", "65", "1000")
	}},
	{"a qualifier", func(m *mutant) {
		i := m.pick(m.is("struct", "union", "enum", "int", "char", "void", "uint32_t"))
		m.words[i] = m.one("const ", "volatile ", "const volatile ", "_Atomic ", "_Alignas(16) ", "static ", "register ", "inline ", "signed ", "unsigned ") + m.words[i]
	}},
}

// newMutant makes change number n of those that a seed gives.
func newMutant(seed, n uint64, header string) *mutant {
	m := &mutant{Rand: rand.New(rand.NewPCG(seed, n)), words: headerWords.FindAllString(prelude, -1)}
	m.first = len(m.words)
	m.words = append(m.words, headerWords.FindAllString(header, -1)...)
	mutations[n%uint64(len(mutations))].change(m)
	return m
}

var positionedError = regexp.MustCompile(`^infiniband/constants\.h:[1-9]\d*:[1-9]\d*: \S`)

// TestMutations changes headers at random. What the scanner makes of each is
// what a compiler says, with everything that the change has declared, or an
// error that has the line. VERBENA_MUTATIONS is the number of changes, and
// VERBENA_MUTATIONS_SEED another seed. The compilers take turns.
func TestMutations(t *testing.T) {
	number := func(name string, otherwise uint64) uint64 {
		n, err := strconv.ParseUint(os.Getenv(name), 10, 64)
		if err != nil {
			return otherwise
		}
		return n
	}
	count, seed := number("VERBENA_MUTATIONS", 60), number("VERBENA_MUTATIONS_SEED", 1)
	all := natives(t)
	for _, tt := range compilers(t) {
		if c, err := Find(tt.command...); err == nil {
			all = append(all, c)
		}
	}
	var header strings.Builder
	for _, name := range []string{"typedefs.h", "records.h", "layouts.h"} {
		text, err := os.ReadFile(filepath.Join(headertest.Top(t), "gen", "internal", "scan", "testdata", "good", name))
		require.NoError(t, err)
		header.Write(text)
	}
	right, refused, notC := 0, 0, 0
	for n := range count {
		kind := mutations[n%uint64(len(mutations))].name
		t.Run(fmt.Sprintf("%s %d", kind, n), func(t *testing.T) {
			m := newMutant(seed, n, header.String())
			a, err := scanText(t, m.text())
			if err != nil {
				refused++
				for line := range strings.Lines(err.Error()) {
					require.Regexp(t, positionedError, line, m.text())
				}
				t.Logf("refused: %v", err)
				return
			}
			source := filepath.Join(t.TempDir(), "mutant.h")
			require.NoError(t, os.WriteFile(source, []byte(m.text()), 0o600))
			c := all[n%uint64(len(all))]
			facts, err := Facts(a, c.Arch)
			require.NoError(t, err)
			r, err := Compare(c, facts, Declarations{Name: kind, Source: source, Macros: true})
			if err != nil {
				notC++
				t.Logf("no C: %v", err)
				return
			}
			require.Empty(t, r.Different, "%s\n%s", c, m.text())
			snapshot, err := a.Marshal()
			require.NoError(t, err)
			for _, name := range m.names {
				require.Regexp(t, `\b`+name+`\b`, string(snapshot), m.text())
			}
			right++
		})
	}
	t.Logf("seed %d: %d scanned right, %d refused, %d are no C by the compiler's word", seed, right, refused, notC)
	require.Greater(t, uint64(right), count/2)
}
