// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// NotInstalled is part of the compiler's message if a header that the result of
// [Header] includes is missing.
const NotInstalled = "is not among the headers of the compiler"

// Header returns the text of a C file that compiles, on any architecture, if
// the headers are as the snapshot says. The file does not check the places of
// bit-fields.
func Header(a *api.API, headers ...string) (string, error) {
	var b strings.Builder
	for _, h := range headers {
		fmt.Fprintf(&b, "#if !__has_include(<%s>)\n#error %[1]s %s\n#endif\n", h, NotInstalled)
	}
	for _, h := range headers {
		fmt.Fprintf(&b, "#include <%s>\n", h)
	}
	b.WriteString(probes)
	b.WriteString("#define VERBENA(text, ...) _Static_assert(__builtin_constant_p(__VA_ARGS__) ? (__VA_ARGS__) : 0, text);\n")

	var order []string
	in := map[string]int{} // number of architectures that have the assertion
	of := map[string][]string{}
	for _, arch := range layout.Arches {
		facts, err := Facts(a, arch)
		if err != nil {
			return "", err
		}
		for _, f := range facts {
			if f.bits != nil {
				continue
			}
			line := fmt.Sprintf("VERBENA(%s, %s)\n", strconv.Quote(f.Name+" is not "+f.Want), f.claim)
			if in[line]++; in[line] == 1 {
				order = append(order, line)
			}
			of[arch.Name] = append(of[arch.Name], line)
		}
	}
	for _, line := range order {
		if in[line] == len(layout.Arches) {
			b.WriteString(line)
		}
	}
	for _, arch := range layout.Arches {
		var own strings.Builder
		for _, line := range of[arch.Name] {
			if in[line] < len(layout.Arches) {
				own.WriteString(line)
			}
		}
		if own.Len() > 0 {
			fmt.Fprintf(&b, "#if defined(%s)\n%s#endif\n", strings.Join(predefined[arch.Name], ") && defined("), &own)
		}
	}
	return b.String(), nil
}
