// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// source is a C file in which each of the facts has one line.
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

// literal returns a number as a C constant of 64 bits.
func literal(n int64) string {
	if n == math.MinInt64 {
		return "(-0x7fffffffffffffffLL - 1)"
	}
	return fmt.Sprintf("%dLL", n)
}

// showNumber returns a C expression whose type encodes the value of expr. The
// type is a pointer to a function with two parameters, which point to arrays:
// the array lengths are the upper and the lower half of the value, plus one.
func showNumber(expr string) string {
	number := fmt.Sprintf("(unsigned long long)(%s)", expr)
	constant := fmt.Sprintf("(__builtin_constant_p(%s) ? %s : 0)", number, number)
	return fmt.Sprintf("(void (*)(char (*)[(%s >> 32) + 1], char (*)[(%s & 0xffffffff) + 1]))0", constant, constant)
}

var (
	quotedType  = regexp.MustCompile(`type '([^']*)'`)
	shownNumber = regexp.MustCompile(`^void \(\*\)\(char \(\*\)\[(\d{1,10})\], char \(\*\)\[(\d{1,10})\]\)$`)
)

// answer returns what the compiler's message to a question shows: a number or a
// type. If pointer is set, it returns the type that the type points to.
func answer(message string, pointer bool) (string, bool) {
	found := quotedType.FindStringSubmatch(message)
	if found == nil {
		return "", false
	}
	text := strings.Join(strings.Fields(found[1]), " ")
	if halves := shownNumber.FindStringSubmatch(text); halves != nil {
		high, _ := strconv.ParseUint(halves[1], 10, 64) // cannot fail: the pattern has digits only
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
