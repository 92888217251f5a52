// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// source is a C file with one line for each of some facts.
type source struct {
	text   string
	before int // number of lines before the first fact
	facts  int
}

// assertions returns a C file that compiles if every claim is true.
func assertions(include string, facts []Fact) source {
	return lines(include, facts, func(f Fact) string {
		// Compilers accept a pointer's value as constant only in this form.
		return fmt.Sprintf("_Static_assert(__builtin_constant_p(%s) ? (%s) : 0, \"\");", f.claim, f.claim)
	})
}

// questions returns a C file in which every line fails with a message that
// names the type of a fact's show expression.
func questions(include string, facts []Fact) source {
	return lines(include, facts, func(f Fact) string {
		return fmt.Sprintf("_Static_assert(_Generic((%s), struct verbena_none *: 1), \"\");", f.show)
	})
}

func lines(include string, facts []Fact, line func(Fact) string) source {
	var b strings.Builder
	fmt.Fprintf(&b, "#include %q\n%s", include, probes)
	before := strings.Count(b.String(), "\n")
	for _, f := range facts {
		b.WriteString(line(f) + "\n")
	}
	b.WriteString("struct verbena_end;\n") // puts the error here if a declaration is unfinished
	return source{b.String(), before, len(facts)}
}

// literal writes a number so that C treats it as 64 bits wide.
func literal(n int64) string {
	if n == math.MinInt64 {
		return "(-0x7fffffffffffffffLL - 1)"
	}
	return fmt.Sprintf("%dLL", n)
}

// showNumber returns an expression whose type encodes the number: a function of
// two arrays whose lengths are its halves plus one.
func showNumber(expr string) string {
	number := fmt.Sprintf("(unsigned long long)(%s)", expr)
	constant := fmt.Sprintf("(__builtin_constant_p(%s) ? %s : 0)", number, number)
	return fmt.Sprintf("(void (*)(char (*)[(%s >> 32) + 1], char (*)[(%s & 0xffffffff) + 1]))0", constant, constant)
}

var (
	quotedType  = regexp.MustCompile(`type '([^']*)'`)
	shownNumber = regexp.MustCompile(`^void \(\*\)\(char \(\*\)\[(\d{1,10})\], char \(\*\)\[(\d{1,10})\]\)$`)
)

// answer extracts the number or the type, or the type that it points to, from
// the compiler's message to a question.
func answer(message string, pointer bool) (string, bool) {
	found := quotedType.FindStringSubmatch(message)
	if found == nil {
		return "", false
	}
	text := strings.Join(strings.Fields(found[1]), " ")
	if halves := shownNumber.FindStringSubmatch(text); halves != nil {
		high, _ := strconv.ParseUint(halves[1], 10, 64) // it matched: these are numbers
		low, _ := strconv.ParseUint(halves[2], 10, 64)
		return fmt.Sprint(int64((high-1)<<32 | (low - 1))), true
	}
	if pointer {
		text = pointee(text)
	}
	return text, true
}

// pointee returns T for a pointer to T, such as int (**)(void), char (*)[2] or
// int *.
func pointee(text string) string {
	before, after, ok := strings.Cut(text, "(*")
	if !ok {
		return strings.TrimRight(strings.TrimSuffix(text, "*"), " ")
	}
	if after, ok := strings.CutPrefix(after, ")"); ok {
		return before + after
	}
	return before + "(" + after
}
