// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// TestRead reads the real libraries of every version: some functions and their
// nodes, with an empty one for what is not exported.
var libraries = []string{"libibverbs.so.1", "librdmacm.so.1"}

func TestRead(t *testing.T) {
	always := map[string]string{
		"ibv_rate_to_mult":    "IBVERBS_1.0",
		"ibv_reg_mr":          "IBVERBS_1.1", // and IBVERBS_1.0 for old programs
		"ibv_register_driver": "",            // IBVERBS_1.1 for old programs only
		"ibv_reg_mr_iova":     "IBVERBS_1.7",
		"ibv_import_device":   "IBVERBS_1.10",
		"_ibv_query_gid_ex":   "IBVERBS_1.11",
		"rdma_listen":         "RDMACM_1.0",
		"rdma_establish":      "RDMACM_1.2",
		"rdma_reject_ece":     "RDMACM_1.3",
		"rsocket":             "RDMACM_1.0",
		"ibv_post_send":       "", // inline
		"pthread_create":      "", // used, not exported
	}
	tests := []struct {
		version string
		want    map[string]string
	}{
		{"33.2", map[string]string{
			"verbs_register_driver_33": "IBVERBS_PRIVATE_33", "ibv_reg_dmabuf_mr": "", "ibv_wr_opcode_str": "",
		}},
		{"44.0", map[string]string{
			"verbs_register_driver_34": "IBVERBS_PRIVATE_34", "ibv_wr_opcode_str": "", "ibv_reg_mr_ex": "",
			"ibv_reg_dmabuf_mr": "IBVERBS_1.12", "ibv_import_dm": "IBVERBS_1.13", "ibv_query_qp_data_in_order": "IBVERBS_1.14",
		}},
		{"56.1", map[string]string{
			"ibv_wr_opcode_str": "IBVERBS_PRIVATE_34", "ibv_reg_mr_ex": "", "rdma_query_addrinfo": "",
			"ibv_query_qp_data_in_order": "IBVERBS_1.14",
		}},
		{"65.0", map[string]string{
			"ibv_wr_opcode_str": "IBVERBS_PRIVATE_65", "ibv_query_qp_data_in_order": "IBVERBS_1.14",
			"ibv_reg_mr_ex": "IBVERBS_1.15", "ibv_query_port_speed": "IBVERBS_1.16", "ibv_alloc_buf": "IBVERBS_1.17",
			"ibv_create_comp_cntr": "IBVERBS_1.18", "rdma_query_addrinfo": "RDMACM_1.4", "repoll_create": "RDMACM_1.5",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.version, func(t *testing.T) {
			nodes, err := Read(Dir(headertest.Dir(t, tt.version)), libraries)
			require.NoError(t, err)
			for _, want := range []map[string]string{always, tt.want} {
				for name, node := range want {
					require.Equal(t, node, nodes[name], name)
				}
			}
		})
	}
}

func TestReadErrors(t *testing.T) {
	dir := t.TempDir()
	_, err := Read(dir, libraries)
	require.ErrorIs(t, err, fs.ErrNotExist)

	library, err := os.ReadFile(filepath.Join(Dir(headertest.Dir(t, "65.0")), libraries[0]))
	require.NoError(t, err)
	path := filepath.Join(dir, libraries[0])
	require.NoError(t, os.WriteFile(path, library, 0o600))
	_, err = Read(dir, libraries)
	require.ErrorContains(t, err, dir+" has only some of the libraries: open "+filepath.Join(dir, libraries[1]))
	require.NotErrorIs(t, err, fs.ErrNotExist, "the caller takes that for a plain folder of headers")

	for _, size := range []int{0, 3, 100, len(library) / 2, len(library) - 1} {
		require.NoError(t, os.WriteFile(path, library[:size], 0o600))
		_, err = Read(dir, libraries)
		require.ErrorContains(t, err, path+" is not an ELF library, or is incomplete: ", "%d of %d bytes", size, len(library))
	}
}

// TestRecord has functions that a snapshot may and may not have.
func TestRecord(t *testing.T) {
	nodes := map[string]string{"ibv_a": "IBVERBS_1.0", "ibv_private": "IBVERBS_PRIVATE_34", "ibv_left": "IBVERBS_1.1", "rdma_a": "RDMACM_1.0"}
	tests := []struct {
		name      string
		f         api.Function
		skip      string
		draft     bool
		node, err string
	}{
		{name: "exported", f: api.Function{Name: "ibv_a"}, node: "IBVERBS_1.0"},
		{name: "exported and skipped", f: api.Function{Name: "ibv_a"}, skip: "why", node: "IBVERBS_1.0"},
		{name: "of the other library", f: api.Function{Name: "rdma_a"}, err: "infiniband/verbs.h declares rdma_a, " +
			"whose node RDMACM_1.0 is that of another library than the one to which the conventions assign the header"},
		{name: "of the other library in a draft", f: api.Function{Name: "rdma_a"}, draft: true, node: "RDMACM_1.0"},
		{name: "inline", f: api.Function{Name: "ibv_inline", Inline: &api.Inline{}}},
		{name: "private", f: api.Function{Name: "ibv_private"}, err: "infiniband/verbs.h declares ibv_private, " +
			`which the library exports under the private node IBVERBS_PRIVATE_34 only; if that is right, add skip="reason" to its line in the conventions`},
		{name: "private and skipped", f: api.Function{Name: "ibv_private"}, skip: "why"},
		{name: "absent", f: api.Function{Name: "ibv_absent"}, err: "infiniband/verbs.h declares ibv_absent, " +
			`which neither libibverbs.so.1 nor librdmacm.so.1 exports under a version node; if that is right, add skip="reason" to its line in the conventions`},
		{name: "absent in a draft", f: api.Function{Name: "ibv_absent"}, draft: true},
		{name: "absent and skipped", f: api.Function{Name: "ibv_absent"}, skip: "why"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.f.Header = "infiniband/verbs.h"
			known := &conventions.Table{
				Headers: []*conventions.Header{{Name: "infiniband/verbs.h", Package: "libibverbs"}},
				Funcs:   map[string]*conventions.Func{tt.f.Name: {Name: tt.f.Name, Skip: tt.skip}},
			}
			a := &api.API{Functions: []*api.Function{&tt.f}}
			err := Record(a, nodes, known, tt.draft)
			if tt.err != "" {
				require.EqualError(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.node, tt.f.Node)
			require.Equal(t, tt.f.Name == "ibv_private", tt.f.Private)
			require.Contains(t, a.Undeclared, &api.Export{Name: "ibv_left", Node: "IBVERBS_1.1"})
			for _, e := range a.Undeclared {
				require.NotContains(t, []string{tt.f.Name, "ibv_private"}, e.Name)
			}
		})
	}
}
