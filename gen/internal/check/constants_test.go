// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/gen/internal/scan"
)

// operands are what the constant expressions below are made of.
const operands = `
#include <stddef.h>
#include <stdint.h>
enum plain { ZERO, ONE, FIVE = 5, BIT = 1 << 4, LARGEST = 0x7fffffff };
enum negative { MINUS = -1, SMALLEST = -0x7fffffff - 1, PLUS = 2 };
enum top { TOP = 0x80000000, ALL = 0xffffffffU, LITTLE = 3 };
enum {
	OWN = 1, OWN_SIZE = sizeof(OWN), OWN_ALIGNMENT = _Alignof(OWN), OWN_WRAPS = OWN - 2u > 0, OWN_NOT = ~OWN, OWN_SIGN = -OWN < 0u,
	OWN_CHOICE = (OWN ? -1 : 1u) > 0, OWN_SHIFT = OWN << 30 >> 29, OWN_TEN = 10, OWN_NEXT, OWN_BOTH = OWN_NOT & OWN_NEXT
};
enum { TOP_FIRST = 0x80000000, TOP_SIGN = -TOP_FIRST > 0, TOP_LITTLE = 1, TOP_LESS = TOP_LITTLE - 2 < 0, TOP_SHIFT = TOP_FIRST >> 31, TOP_END };
enum { LOOSE = 1L << 20, LETTER = 'A', NEXT, FROM_CAST = (unsigned char)-1, FROM_SIZE = sizeof(long) };
struct pair { uint8_t a; uint64_t b; uint16_t c[3]; };
union either { uint32_t a; uint8_t b[6]; };
#define SHIFT(n) (1 << (n))
#define RENAMED FIVE
`

// expressions has constants of all kinds. What they come to, and their types,
// is the same on all architectures.
var expressions = map[string][]string{
	"enumerator": {
		"ZERO", "FIVE", "LARGEST", "MINUS", "SMALLEST", "PLUS", "TOP", "ALL", "LITTLE", "LOOSE", "LETTER", "NEXT", "FROM_CAST", "FROM_SIZE", "RENAMED",
		"(FIVE)", "+FIVE", "-FIVE", "~FIVE", "!FIVE", "-ONE", "-MINUS", "~MINUS", "-PLUS", "~ZERO", "-TOP", "~TOP", "-LITTLE", "~LITTLE",
		"FIVE | BIT", "FIVE & BIT", "FIVE ^ BIT", "FIVE + BIT", "FIVE - BIT", "BIT * FIVE", "BIT / FIVE", "BIT % FIVE", "FIVE - BIT / FIVE",
		"ZERO - ONE", "ZERO - 1 < 0", "ZERO - ONE < 0", "ZERO > MINUS", "MINUS < ONE", "FIVE == 5", "MINUS == -1", "MINUS == 0xffffffff", "FIVE > -1",
		"LITTLE - 4", "LITTLE - 4 < 0", "LITTLE > -1", "TOP > -1", "TOP - 1 < 0", "TOP + TOP", "ALL + 1", "ALL * ALL", "TOP | ONE", "ALL & ~ONE",
		"ZERO ? ONE : MINUS", "ONE ? FIVE : 7u", "ONE ? MINUS : TOP", "ONE ? -1 : LITTLE", "FIVE << ONE", "MINUS >> 1", "TOP >> 31",
		"-FIVE / 2", "-FIVE % 3", "-7 / BIT", "MINUS / 2u", "LOOSE * 2", "NEXT - LETTER", "FROM_SIZE * 8", "SMALLEST + LARGEST", "LARGEST ^ SMALLEST",
		"OWN - 2", "OWN_NOT", "OWN_SIZE - 5 < 0", "TOP_LITTLE - 2", "TOP_LITTLE - 2 < 0", "TOP_SHIFT - 2", "TOP_END | TOP_FIRST", "-TOP_END", "TOP_LITTLE | TOP_END",
		"FIVE && MINUS", "ZERO || ZERO", "!MINUS", "!!FIVE", "ZERO && 1 / 0", "ONE || 1 / 0", "ONE ? 3 : 1 / 0",
	},
	"enum": {
		"(enum plain)-1", "(enum plain)-1 > 0", "(enum plain)FIVE - 6 < 0", "(enum negative)-1 < 0", "(enum negative)0xffffffff", "(enum top)-1", "-(enum plain)1",
		"~(enum plain)0", "(enum plain)3 - (enum plain)4", "(enum plain)-1 >> 1", "(enum negative)-4 >> 1", "(enum plain)0x100000001LL", "sizeof(enum plain)",
		"(enum top)LITTLE", "(int)(enum plain)-1", "(long)(enum plain)-1", "(long)(enum negative)-1", "sizeof(enum top)", "_Alignof(enum negative)",
	},
	"literal": {
		"0", "1", "017", "0x1f", "0b101", "2147483647", "2147483648", "4294967295", "4294967296", "9223372036854775807", "0x7fffffff", "0x80000000",
		"0xffffffff", "0x100000000", "0x7fffffffffffffff", "0x8000000000000000", "0xffffffffffffffff", "037777777777", "020000000000", "01777777777777777777777",
		"1u", "1U", "1l", "1L", "1ul", "1UL", "1lu", "1LU", "1ll", "1LL", "1ull", "1ULL", "1llu", "1LLU", "1uLL", "0x80000000L", "0xffffffffu", "4294967295U",
		"4294967296U", "2147483648u", "0x8000000000000000LL", "0xffffffffffffffffULL", "18446744073709551615ULL", "-2147483648", "-2147483647 - 1",
		"-9223372036854775807 - 1", "-1u", "-1ul", "-0x80000000", "-1LL", "~0", "~0u", "~0L", "~0ULL", "-(1)", "- -1", "0b11111111111111111111111111111111",
	},
	"character": {
		"'a'", "'0'", "'\\0'", "'\\n'", "'\\t'", "'\\r'", "'\\a'", "'\\b'", "'\\f'", "'\\v'", "'\\\\'", "'\\''", "'\\\"'", "'\"'", "'\\?'", "'\\x41'", "'\\101'", "'\\7'",
		"'\\x7f'", "'a' + 1", "'z' - 'a'", "-'a'", "~'a'", "sizeof('a')",
		"sizeof(L'a')",
	},
	"cast": {
		"(char)65", "(signed char)255", "(signed char)128", "(unsigned char)-1", "(unsigned char)256", "(short)0x8000", "(unsigned short)-1", "(int)0x80000000",
		"(int)4294967295", "(int)0x1ffffffffLL", "(unsigned)-1", "(unsigned int)-1LL", "(long)-1", "(long)0xffffffff", "(unsigned long)-1", "(long long)-1u",
		"(long long)-1", "(unsigned long long)-1", "(unsigned long long)(int)-1", "(uint8_t)300", "(int8_t)200", "(uint16_t)70000", "(int16_t)40000",
		"(uint32_t)-1", "(int32_t)0xffffffff", "(uint64_t)-1", "(int64_t)0xffffffffffffffffULL", "(size_t)-1", "(ptrdiff_t)-1", "(uintptr_t)-1",
		"(_Bool)2", "(_Bool)0", "(_Bool)0x100", "(_Bool)-1", "-(_Bool)1", "~(_Bool)1", "(_Bool)0.5", "(uint8_t)255 + 1", "(uint8_t)-1 << 8", "-(uint8_t)1",
		"~(uint8_t)0", "~(uint16_t)0", "(uint8_t)~0", "(unsigned char)1 - 2", "(unsigned short)1 - 2 < 0", "(uint16_t)0xffff * 2",
		"(signed char)-1 == (unsigned char)255", "(int)1.9", "(int)-1.9", "(unsigned)3.99", "(long)1e9", "(unsigned long)1e18", "(uint8_t)255.5", "(int)1.5f",
		"(int)0x1p4", "(signed char)(unsigned char)200", "(unsigned)(signed char)-1", "(unsigned short)(signed char)-1", "(int)(unsigned char)0xfff",
		"(uint64_t)(uint32_t)-1", "(uint64_t)(int32_t)-1", "(int64_t)(uint32_t)-1", "(unsigned long)(enum negative)MINUS", "((uint8_t)1)", "+(uint8_t)1", "+(short)1",
	},
	"sizeof": {
		"sizeof(char)", "sizeof(short)", "sizeof(int)", "sizeof(long)", "sizeof(long long)", "sizeof(void *)", "sizeof(float)", "sizeof(double)", "sizeof(_Bool)",
		"sizeof(uint16_t)", "sizeof(struct pair)", "sizeof(union either)", "sizeof(int[3])", "sizeof(char[sizeof(int)])", "sizeof(int (*)(void))",
		"sizeof(struct pair *)", "sizeof 1", "sizeof(1L)", "sizeof(1 ? 1 : 1L)", "sizeof(char) - 2 < 0", "-sizeof(int)", "~sizeof(int)", "sizeof(int) * 8 - 1",
		"sizeof(FIVE)", "sizeof(TOP)", "sizeof(enum plain)", "sizeof((char)1)", "sizeof(+(char)1)", "sizeof(\"abc\")", "sizeof(\"\")", "sizeof(\"a\\0b\")",
		"sizeof \"abc\"", "sizeof(((struct pair *)0)->c)", "sizeof(((struct pair *)0)->c[0])",
		"sizeof(((struct pair *)0)->c) / sizeof(((struct pair *)0)->c[0])", "sizeof(const int)", "(int)sizeof(int) - 5", "sizeof(1 / 0)",
		"_Alignof(char)", "_Alignof(int)", "_Alignof(uint64_t)", "_Alignof(struct pair)", "_Alignof(union either)", "__alignof__(long)", "_Alignof(int[3])",
		"offsetof(struct pair, b)", "offsetof(struct pair, c)", "__builtin_offsetof(union either, b)", "offsetof(struct pair, b) - 9",
	},
	"shift": {
		"1 << 0", "1 << 30", "1u << 31", "1L << 31", "1L << 32", "1LL << 62", "1ULL << 63", "1UL << 63", "1u << 31 << 1", "-1 >> 4", "-8 >> 1",
		"-1 >> 31", "0x80000000 >> 31", "(int)0x80000000 >> 31", "-1L >> 63", "-1ul >> 63", "1 << 2L", "1L << 2", "1 << 2ULL", "(char)1 << 8",
		"(uint16_t)1 << 16", "0xffu << 24", "0x7f << 24", "SHIFT(3)", "SHIFT(3) | SHIFT(5)", "~(1 << 3)", "~(1u << 3)", "(1 << 4) - 1", "(1ull << 40) - 1",
		"1 << 3 + 1", "(1 << 3) + 1", "256 >> 2 >> 1", "1 << FIVE", "FIVE << 2", "1u << LITTLE", "sizeof(int) << 2", "1 << sizeof(int)", "-1LL >> 1", "'a' << 8",
	},
	"operator": {
		"1 + 2", "1u + 2", "1 + 2u", "1 + 2L", "1u + 2L", "1L + 2u", "1UL + 2LL", "1LL + 2UL", "1ULL + 2", "1 - 2", "1u - 2", "1 - 2u", "1u - 2L", "1UL - 2LL", "1L - 2u",
		"3 * 4", "-3 * 4", "-3 * 4u", "0x10000u * 0x10000u", "0x10000L * 0x10000", "7 / 2", "-7 / 2", "7 / -2", "-7 / 2u", "-7L / 2u", "-7L / 2ul", "7 % 3", "-7 % 3",
		"7 % -3", "-7 % 3u", "5 & 3", "5 | 3", "5 ^ 3", "-1 & 0xff", "-1 & 0xffu", "-1 & 0xffL", "-1 | 0u", "-1 ^ 0UL", "0x80000000 | 1", "0x7fffffff | 0x80000000",
		"1 == 1", "1 != 1", "-1 == 0xffffffff", "-1 == 0xffffffffL", "-1 != 0xffffffffUL", "1 < 2", "-1 < 1u", "-1 < 1L", "-1L < 1u", "-1L < 1ul", "-1 > 1u", "-1 <= 0u",
		"-1 >= 0u", "2 >= 2", "1 < 2 < 3", "3 > 2 > 1", "1 && 2", "0 && 2", "0 || 2", "0 || 0", "!0", "!5", "!!5", "!0x100000000", "!0.0", "1.5 < 2", "0.5 && 1",
		"0x100000000 && 1", "1 ? 2 : 3", "0 ? 2 : 3", "1 ? 2 : 3u", "0 ? 2u : -3", "1 ? -1 : 0u", "1 ? -1 : 0L", "1 ? -1 : 0UL", "0 ? -1u : -1L", "1 ? (char)1 : (char)2",
		"1 ? (uint8_t)1 : (int8_t)-1", "1 ? 2 : 0 ? 3 : 4L", "(1 ? 2 : 3) + 1", "0x100000000 ? 1 : 2", "0.5 ? 1 : 2", "+1", "-1", "- - 1", "~-1", "-~0", "!-1", "~~5u",
		"2147483647 + 1u", "4294967295u + 1", "4294967295u + 1L", "0xffffffffffffffff + 1", "-1 / 1u", "0u - 1 > 0", "0ul - 1 > 0", "(5 & 4) == 4", "5 & 4 == 4", "1 | 2 & 3 ^ 4",
		"10 - 5 - 2", "100 / 10 / 2", "2 + 3 * 4 - 6 / 2", "(2 + 3) * (4 - 6) / 2", "1 ? 0 || 1 : 0",
	},
	"folded": { // which are no constant expressions by the standard's word
		"(void *)8", "(char *)8", "(void *)-1", "(void *)(FIVE - 6)", "(char *)(LITTLE - 4)", "(struct pair *)(enum plain)-1", "(uintptr_t)(void *)(LITTLE - 4)",
		"1 << 31", "-1 << 4", "(uint8_t)0xff << 24", "0xff << 24", "(uint8_t)(~0 << 4)", "ONE << 31 >> 31", "-SMALLEST",
		"(void *)0", "(void *)-1", "(char *)8", "(struct pair *)0", "(uintptr_t)(void *)16", "(long)(void *)-1", "(size_t)&((struct pair *)0)->b", "(void *)0 == 0", "!(void *)0",
	},
}

// conditions are expressions that #if takes.
var conditions = []string{
	"0", "1", "-1", "1 - 2", "1u - 2", "-1 > 0u", "-1 < 0u", "-1 == 0xffffffff", "-1 == 0xffffffffffffffff", "0x80000000 > 0", "~0", "~0u", "-1 >> 63", "-1u >> 63",
	"1 << 31", "1 << 32", "1u << 63", "2147483647 + 1 > 0", "9223372036854775807 > 0", "0x8000000000000000 > 0", "-9223372036854775807 - 1", "7 / -2", "-7 / 2", "-7 % 3",
	"-7 / 2u", "'a'", "'a' == 97", "'\\0'", "'\\n' == 10", "'\\x7f' == 127", "1 ? -1 : 0u", "1 ? -1 : 0", "0 ? 1 / 0 : 2", "1 || 1 / 0", "0 && 1 / 0", "!0 == 1", "5 & 4 == 4",
	"1 < 2 < 3", "defined SHIFT", "defined(NOTHING)", "!defined NOTHING && SHIFT(3) == 8", "NOTHING", "FIVE", "-FIVE", "true", "SHIFT(4) - 17", "017 == 15",
	"0xffffffffffffffff", "18446744073709551615u == -1", "-1 * -1u", "-1 ^ 0u", "(2 + 3) * (4 - 6)", "2 + 3 * 4", "1LL - 2ULL > 0", "__CHAR_BIT__ == 8",
}

// TestConstants has each compiler judge what the scanner makes of constant
// expressions: as macros, as lengths of arrays, as enumerators, in #if.
func TestConstants(t *testing.T) {
	var text strings.Builder
	text.WriteString("#pragma once\n" + operands)
	of := map[string]string{} // expression by name, in lower case
	name := func(kind string, i int, expression string) string {
		name := fmt.Sprintf("%s_%d", strings.ToUpper(kind), i)
		of[strings.ToLower(name)] = expression
		return name
	}
	for _, kind := range slices.Sorted(maps.Keys(expressions)) {
		for i, e := range expressions[kind] {
			name := name(kind, i, e)
			fmt.Fprintf(&text, "#define %s %s\n", name, e)
			if kind != "folded" {
				fmt.Fprintf(&text, "struct %s { char length[((%s) & 7) + 1], sign[(%[2]s) < 0 ? 1 : 2]; };\n", strings.ToLower(name), e)
				fmt.Fprintf(&text, "enum { %s_LOW = (%s) & 0xffff, %[1]s_SIGN = (%[2]s) < 0, %[1]s_NEXT };\n", name, e)
			}
		}
	}
	for i, c := range conditions {
		name := name("if", i, c)
		for suffix, condition := range map[string]string{"": c, "_SIGN": "(" + c + ") < 0", "_LOW": "(" + c + ") & 1"} {
			fmt.Fprintf(&text, "#if %s\n#define %s 1\n#else\n#define %[2]s 0\n#endif\n", condition, name+suffix)
		}
	}
	a := scanned(t, text.String())
	values := map[string]bool{}
	for _, m := range a.Macros {
		values[strings.ToLower(m.Name)] = true
	}
	for name, e := range of {
		require.True(t, values[name], "%s has no value", e)
	}
	source := filepath.Join(t.TempDir(), "constants.h")
	require.NoError(t, os.WriteFile(source, []byte(text.String()), 0o600))
	for _, tt := range compilers(t) {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.find(t)
			facts, err := Facts(a, c.Arch)
			require.NoError(t, err)
			r, err := Compare(c, facts, Declarations{Source: source, Macros: true})
			require.NoError(t, err)
			for _, difference := range r.Different {
				kind := strings.SplitN(strings.ToLower(strings.TrimPrefix(difference, "struct ")), "_", 2)
				number := strings.FieldsFunc(kind[len(kind)-1], func(r rune) bool { return !unicode.IsDigit(r) })
				t.Errorf("%s: %s", of[kind[0]+"_"+number[0]], difference)
			}
			t.Logf("%d expressions, %d comparisons", len(of), r.Total())
		})
	}
}

// scanned scans a text as a header.
func scanned(t *testing.T, text string) *api.API {
	t.Helper()
	a, err := scanText(t, text)
	require.NoError(t, err)
	return a
}

// scanText scans a text as a header. Paths in errors start at the include
// folder.
func scanText(t *testing.T, text string) (*api.API, error) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "infiniband"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "infiniband", "constants.h"), []byte(text), 0o600))
	source := filepath.Join(dir, "umbrella.h")
	require.NoError(t, os.WriteFile(source, []byte("#include <infiniband/constants.h>\n"), 0o600))
	known, err := conventions.Parse("", []byte("header infiniband/constants.h libibverbs\n"))
	require.NoError(t, err)
	a, err := scan.Scan(scan.Options{
		Headers: dir, Shim: filepath.Join(headertest.Top(t), "headers", "shim"), Source: source, Version: "1.0", Known: known, Draft: true,
	})
	if err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), dir+"/", ""))
	}
	return a, nil
}
