package ibverbs_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// hiddenQP makes a queue pair behind the package's back, and returns what
// destroys it, which is also done at the end of the test.
func hiddenQP(t *testing.T, r *rig, cq *ibverbs.CQ) (destroy func()) {
	t.Helper()
	attr, err := ibverbs.RawConfig(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
	require.NoError(t, err)
	raw := must(libibverbs.CreateQp(r.pd.Raw(), &attr))(t)
	destroy = sync.OnceFunc(func() { require.NoError(t, libibverbs.DestroyQp(raw)) })
	t.Cleanup(destroy)
	return destroy
}
