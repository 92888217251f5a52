package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/internal/golden"
)

// cc returns the C compiler that cgo would use.
func cc(t *testing.T) string {
	t.Helper()
	name := os.Getenv("CC")
	if name == "" {
		name = "cc"
	}
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	return name
}

func snapshot(t *testing.T) *api.API {
	t.Helper()
	a, err := api.Load(filepath.Join(headertest.Top(t), "headers", "api", "65.0.json"))
	require.NoError(t, err)
	return a
}

func umbrella(t *testing.T) string {
	return filepath.Join(headertest.Top(t), "headers", "umbrella.h")
}

// requireGolden compares what the compiler said with the golden layouts, which
// the tests of the generated packages compare with Go's.
func requireGolden(t *testing.T, r *Report) {
	t.Helper()
	require.Len(t, r.Layouts, 2)
	for name, text := range r.Layouts {
		golden.Compare(t, filepath.Join(headertest.Top(t), "tests", "golden", name+".layout"), text)
	}
}

// TestHeaders proves with a C compiler and the real headers that every layout,
// enumerator and macro of the snapshot is right, and the golden layouts too.
func TestHeaders(t *testing.T) {
	dir := headertest.Dir(t, "65.0")
	r, err := Run(snapshot(t), cc(t), umbrella(t), filepath.Join(dir, "usr", "include"), emit.Home)
	require.NoError(t, err)
	require.Empty(t, r.Different)
	require.Greater(t, r.Compared, 2800)
	requireGolden(t, r)
}

// TestOurDeclarations proves the same of the C declarations that the bindings
// are compiled with; these have no macros.
func TestOurDeclarations(t *testing.T) {
	a := snapshot(t)
	a.Macros = nil
	source := filepath.Join(t.TempDir(), "ours.h")
	require.NoError(t, os.WriteFile(source, []byte("#include <abi.h>\n"), 0o600))
	r, err := Run(a, cc(t), source, filepath.Join(headertest.Top(t), "generated", "librdmacm"), emit.Home)
	require.NoError(t, err)
	require.Empty(t, r.Different)
	require.Greater(t, r.Compared, 2700)
	requireGolden(t, r)
}

// TestVerbsDeclarations does so for libibverbs alone.
func TestVerbsDeclarations(t *testing.T) {
	a := snapshot(t)
	a.Macros = nil
	a.Structs = only(a.Structs, func(s *api.Struct) string { return s.Header })
	a.Enums = only(a.Enums, func(e *api.Enum) string { return e.Header })
	source := filepath.Join(t.TempDir(), "ours.h")
	require.NoError(t, os.WriteFile(source, []byte("#include <abi.h>\n"), 0o600))
	r, err := Run(a, cc(t), source, filepath.Join(headertest.Top(t), "generated", "libibverbs"), emit.Home)
	require.NoError(t, err)
	require.Empty(t, r.Different)
	require.Greater(t, r.Compared, 2500)
}

// only keeps what is declared in libibverbs.
func only[T any](items []T, header func(T) string) []T {
	var out []T
	for _, item := range items {
		if emit.Home(header(item)) == "libibverbs" {
			out = append(out, item)
		}
	}
	return out
}

// TestDifferencesAreFound shows that the check would notice a wrong snapshot.
func TestDifferencesAreFound(t *testing.T) {
	tests := []struct {
		name   string
		change func(*api.API)
		want   string
	}{
		{
			"size", func(a *api.API) { structOf(a, "struct ibv_qp_cap").Size = 24 },
			"snapshot: struct ibv_qp_cap size 24 align 4; compiler: struct ibv_qp_cap size 20 align 4",
		},
		{
			"offset", func(a *api.API) { structOf(a, "struct ibv_qp_cap").Members[1].Offset = 8 },
			"snapshot: struct ibv_qp_cap.max_recv_wr offset 8 size 4; compiler: struct ibv_qp_cap.max_recv_wr offset 4 size 4",
		},
		{
			"member", func(a *api.API) { structOf(a, "struct ibv_qp_cap").Members[1].Type = &api.Type{Name: "uint64_t"} },
			"snapshot: struct ibv_qp_cap.max_recv_wr offset 4 size 8; compiler: struct ibv_qp_cap.max_recv_wr offset 4 size 4",
		},
		{"enumerator", func(a *api.API) {
			for _, e := range a.Enums {
				if e.Name == "ibv_mtu" {
					e.Values[0].Value = 9
				}
			}
		}, "snapshot: IBV_MTU_256 = 9; compiler: IBV_MTU_256 = 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := snapshot(t)
			a.Macros = nil
			tt.change(a)
			source := filepath.Join(t.TempDir(), "ours.h")
			require.NoError(t, os.WriteFile(source, []byte("#include <abi.h>\n"), 0o600))
			r, err := Run(a, cc(t), source, filepath.Join(headertest.Top(t), "generated", "librdmacm"), emit.Home)
			require.NoError(t, err)
			require.Contains(t, r.Different, tt.want)
		})
	}
}

func TestCompilerErrors(t *testing.T) {
	a := snapshot(t)
	_, err := Run(a, "verbena-has-no-such-compiler", umbrella(t), "testdata", emit.Home)
	require.ErrorIs(t, err, exec.ErrNotFound)
	source := filepath.Join(t.TempDir(), "bad.h")
	require.NoError(t, os.WriteFile(source, []byte("#error not for you\n"), 0o600))
	_, err = Run(a, cc(t), source, ".", emit.Home)
	require.ErrorContains(t, err, "not for you")
}

func structOf(a *api.API, name string) *api.Struct {
	for _, s := range a.Structs {
		if s.Name == name {
			return s
		}
	}
	return nil
}
