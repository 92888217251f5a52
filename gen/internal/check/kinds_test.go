// SPDX-License-Identifier: Apache-2.0

package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// TestKinds has every compiler compare what the scanner makes of headers with
// kinds of C that rdma-core has not: typedefs, layouts that attributes, #pragma
// pack and bit-fields determine, structs by value, variables, and constants
// that are no integers.
func TestKinds(t *testing.T) {
	good := filepath.Join(headertest.Top(t), "gen", "internal", "scan", "testdata", "good")
	const includes = "#include <stddef.h>\n#include <stdint.h>\n#include <linux/types.h>\n"
	total := map[string]int{"typedefs": 90, "records": 56, "layouts": 300}
	for _, tt := range compilers(t) {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.find(t)
			for name, least := range total {
				t.Run(name, func(t *testing.T) {
					a, err := api.Load(filepath.Join(good, name+".json"))
					require.NoError(t, err)
					text, err := os.ReadFile(filepath.Join(good, name+".h"))
					require.NoError(t, err)
					source := filepath.Join(t.TempDir(), name+".h")
					require.NoError(t, os.WriteFile(source, []byte(includes+string(text)), 0o600))
					facts, err := Facts(a, c.Arch)
					require.NoError(t, err)
					agrees(t, c, facts, least, Declarations{Name: name, Source: source, Macros: true})
				})
			}
		})
	}
}

// TestBitDifferences shows that a bit-field in another place is noticed.
func TestBitDifferences(t *testing.T) {
	c := native(t)
	source := filepath.Join(t.TempDir(), "bits.h")
	require.NoError(t, os.WriteFile(source, []byte("struct s { int a : 3; int : 2; int b : 5; };\n"), 0o600))
	number := &api.Type{Name: "int"}
	a := &api.API{Structs: []*api.Struct{{Name: "struct s", Header: "bits.h", Size: 4, Align: 4, Members: []*api.Member{
		{Name: "a", Type: number, Bits: &api.Bits{At: 0, Width: 3}}, {Name: "b", Type: number, Bits: &api.Bits{At: 5, Width: 6}},
	}}}}
	facts, err := Facts(a, c.Arch)
	require.NoError(t, err)
	r, err := Compare(c, facts, Declarations{Name: "bits.h", Source: source})
	require.NoError(t, err)
	if c.Arch.Name == "s390x" {
		t.Skip("bits are counted from the other end")
	}
	require.Equal(t, "struct s.b bits: snapshot 6 from 5, compiler 5 from 5", strings.Join(r.Different, "\n"))
}
