// SPDX-License-Identifier: Apache-2.0

package inlinetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const cases = 2000

// TestSame proves that each stub does what the header's function does, and
// gives an error where that crashes or aborts.
func TestSame(t *testing.T) {
	dir, options := t.TempDir(), coverage(t)
	reports := compare(t, build(t, dir, nil, options...), cases)
	tested := Tested(input(t))
	require.Len(t, reports, len(tested))
	t.Logf("%d functions, %d cases each", len(tested), cases)
	for _, f := range tested {
		r := reports[f.Name]
		t.Logf("%-36s calls %4d, returned %4d, crashed %3d, asserted %4d", f.Name, r.calls, r.returned, r.crashed, r.asserted)
		require.Equal(t, cases, r.cases, f.Name)
		if r.different > 0 {
			t.Errorf("%d cases differ; %s", r.different, r.text)
		}
		if f.Inline != nil && f.Inline.Call != "" {
			require.Greater(t, r.calls, cases/2, f.Name)
			require.Greater(t, cases-r.calls, cases/40, "%s: the operation was never missing", f.Name)
		}
		if f.Inline != nil && f.Inline.Guard != "" {
			require.Zero(t, r.crashed, f.Name)
		}
	}
	t.Run("lines", func(t *testing.T) {
		if options == nil {
			t.Skip("the C compiler does not count lines as gcov reads them")
		}
		everyLine(t, dir)
	})
}

// wrong has errors to make in the stubs, and the functions that they are in.
var wrong = []struct {
	file, old, new string
	functions      []string
}{
	{"libibverbs", "\tmemset(attr, 0, sizeof(*attr));\n\treturn LIB(ibv_query_port)", "\treturn LIB(ibv_query_port)", []string{"ibv_query_port"}},
	{"libibverbs", "LIB(ibv_reg_mr_iova2)(pd, addr, length, (uintptr_t)addr, (unsigned int)access)", "LIB(ibv_reg_mr)(pd, addr, length, access)", []string{"ibv_reg_mr"}},
	{"libibverbs", "return LIB(ibv_reg_mr_iova) ? LIB(ibv_reg_mr_iova)(pd, addr", "return LIB(ibv_reg_mr_iova) ? LIB(ibv_reg_mr_iova)(pd, NULL", []string{"ibv_reg_mr_iova"}},
	{"libibverbs", "return EPERM;", "return EINVAL;", []string{"ibv_bind_mw"}},
	{"libibverbs", "if (!(mask & ~basic) && mask & IBV_SRQ_INIT_ATTR_PD", "if (mask & IBV_SRQ_INIT_ATTR_PD", []string{"ibv_create_srq_ex"}},
	{"libibverbs", "attr->comp_mask == IBV_QP_INIT_ATTR_PD", "attr->comp_mask & IBV_QP_INIT_ATTR_PD", []string{"ibv_create_qp_ex"}},
	{"libibverbs", "\t\twq->events_completed = 0;\n", "", []string{"ibv_create_wq"}},
	{"libibverbs", "\t*bad_op = op;\n", "", []string{"ibv_post_srq_ops"}},
	{"libibverbs", "ret != EOPNOTSUPP && ret != ENOSYS", "ret != EOPNOTSUPP", []string{"ibv_query_device_ex"}},
	{"libibverbs", "qp->wr_set_sge(qp, lkey, addr, length)", "qp->wr_set_sge(qp, length, addr, lkey)", []string{"ibv_wr_set_sge"}},
	{"libibverbs", "\terrno = 0;\n\tr.value = cq->next_poll(cq)", "\tr.value = cq->next_poll(cq)", []string{"ibv_next_poll"}},
	{"libibverbs", "CONTEXT_WITH(pd->context, advise_mr)", "CONTEXT_WITH(pd->context, query_port)", []string{"ibv_advise_mr"}},
	{"librdmacm", "return &id->route.addr.dst_addr", "return &id->route.addr.src_addr", []string{"rdma_get_peer_addr"}},
	{"librdmacm", "length > mr->length - start", "length >= mr->length - start", []string{"rdma_post_recv"}},
	{"librdmacm", "0x01234567", "0x01234568", []string{"rdma_post_ud_send"}},
	{"librdmacm", "post_rdma(id, IBV_WR_RDMA_WRITE", "post_rdma(id, IBV_WR_RDMA_READ", []string{"rdma_post_writev", "rdma_post_write"}},
	{"librdmacm", "get_comp(id, id->send_cq_channel", "get_comp(id, id->recv_cq_channel", []string{"rdma_get_send_comp"}},
	{"librdmacm", "return with_errno(LIB(ibv_dereg_mr) ? LIB(ibv_dereg_mr)(mr) : MISSING)", "return LIB(ibv_dereg_mr) ? LIB(ibv_dereg_mr)(mr) : -1", []string{"rdma_dereg_mr"}},
	{"librdmacm", "IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ", "IBV_ACCESS_REMOTE_READ", []string{"rdma_reg_read"}},
}

// TestWrong shows that errors in the stubs are found, and only where they are.
func TestWrong(t *testing.T) {
	want := map[string]bool{}
	program := build(t, t.TempDir(), func(generated string) {
		for _, w := range wrong {
			path := filepath.Join(generated, w.file, "stubs.c")
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(text), w.old), w.old)
			require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), w.old, w.new, 1)), 0o600))
			for _, name := range w.functions {
				want[name] = true
			}
		}
	})
	for name, r := range compare(t, program, cases/4) {
		require.Equal(t, want[name], r.different > 0, "%s: %s", name, r.text)
	}
}
