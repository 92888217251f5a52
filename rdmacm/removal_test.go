package rdmacm_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// tests/interop removes a real device.
func TestEventsThatEndAConnection(t *testing.T) {
	d := needDevice(t)
	for _, tt := range []struct {
		event rdmacm.Event
		want  error
	}{
		{rdmacm.Event{Type: rdmacm.EventDeviceRemoval}, syscall.ENODEV},
		{rdmacm.Event{Type: rdmacm.EventRejected, Status: int(rdmacm.ReasonConsumer)}, syscall.ECONNREFUSED},
		{rdmacm.Event{Type: rdmacm.EventConnectError, Status: -int(syscall.EIO)}, syscall.EIO},
	} {
		t.Run(tt.event.Type.String(), func(t *testing.T) {
			client, _ := connect(t, d.IPv4, nil, nil)
			pending, err := client.PostRecv()
			require.NoError(t, err)
			rdmacm.Inject(client, &tt.event)
			<-client.Done()
			_, err = pending.Wait(bounded(t))
			require.ErrorIs(t, err, tt.want)
			require.ErrorIs(t, client.Send(bounded(t)), tt.want)
			require.NoError(t, client.Close())
		})
	}
}

// Some kernels report an established connection's peer as unreachable when a
// neighbour changes, and addresses may change at any time.
func TestEventsThatDoNotEndAConnection(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	for _, event := range []rdmacm.EventType{
		rdmacm.EventUnreachable, rdmacm.EventAddrChange, rdmacm.EventTimewaitExit, rdmacm.EventEstablished,
	} {
		rdmacm.Inject(client, &rdmacm.Event{Type: event})
	}
	require.NoError(t, client.Err())
	_, err := server.PostRecv()
	require.NoError(t, err)
	require.NoError(t, client.Send(bounded(t)))
}
