// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package vendor

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs/efa"
	"github.com/verbena-go/verbena/ibverbs/mlx5"
	"github.com/verbena-go/verbena/internal/testutil/misuse"
)

// No mistake of a caller's panics or crashes the drivers' libraries.
func TestNonsenseArguments(t *testing.T) {
	functions := []any{efa.Query, efa.Number, efa.CreateQP, mlx5.IsSupported, mlx5.Query, mlx5.CreateDCI, mlx5.CreateDCT}
	for kind, create := range map[string]func(t *testing.T) (*rig, any){
		"efa.QP":   func(t *testing.T) (*rig, any) { r := openEFA(t); return r, r.srd(efa.QPConfig{}) },
		"mlx5.DCI": func(t *testing.T) (*rig, any) { r := openMLX5(t); return r, r.dci(mlx5.DCIConfig{}) },
		"mlx5.DCT": func(t *testing.T) (*rig, any) { r := openMLX5(t); return r, r.dct(1) },
	} {
		for name, args := range map[string]func(reflect.Type) reflect.Value{
			"zero": misuse.Zero, "ones": misuse.Filled(1), "negative": misuse.Filled(-1),
			"largest": misuse.Filled(math.MaxInt64), "least": misuse.Filled(math.MinInt64),
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				r, object := create(t)
				calls := misuse.Methods(object)
				for _, first := range []any{r.device, r.pd, r.ah} {
					for _, m := range misuse.Methods(first, functions...) {
						for _, f := range functions {
							if m.Name == misuse.Name(f) {
								calls = append(calls, m)
							}
						}
					}
				}
				require.Greater(t, len(calls), 7)
				for _, m := range calls {
					if m.Name == "Close" {
						continue
					}
					_, err := m.Call(args)
					var panicked *misuse.Panic
					require.False(t, errors.As(err, &panicked), "%v", err)
				}
			})
		}
	}
}
