package rdmacm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// An event of a device that librdmacm has open names the connection's queue
// pair, whoever reads it.
func TestAsyncEventNamesTheConnection(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	device, err := ibverbs.ContextFromRaw(client.PD().Device().Raw(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })
	for _, qp := range []*ibverbs.QP{client.QP(), server.QP()} {
		require.NoError(t, qp.Modify(&libibverbs.QpAttr{QpState: ibverbs.QPStateSQD}, libibverbs.IBV_QP_STATE))
		for ev, err := range device.Events(bounded(t)) {
			require.NoError(t, err)
			if ev.Type == ibverbs.EventSQDrained {
				require.Same(t, qp, ev.QP())
				require.Equal(t, qp.Num(), ev.Number)
				break
			}
		}
	}
}
