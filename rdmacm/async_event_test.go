package rdmacm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/bridge"
)

// An event of a device that librdmacm has open names the connection's queue
// pair, whoever reads it.
func TestAsyncEventNamesTheConnection(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	device := bridge.RDMACM.DeviceFromRaw(client.PD().Device().Raw(), func() error { return nil }).(*ibverbs.Device)
	t.Cleanup(func() { require.NoError(t, device.Close()) })
	for _, qp := range []*ibverbs.QP{client.QP(), server.QP()} {
		require.NoError(t, qp.Modify(ibverbs.QPAttr{State: ibverbs.QPStateSQD}, ibverbs.QPAttrState))
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
