package rdmacm_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// Receives that are posted in the very moment in which the connection ends, end
// too.
func TestReceivesAtTheEnd(t *testing.T) {
	d := needDevice(t)
	for name, end := range map[string]func(t *testing.T, client, server *rdmacm.Conn) error{
		"the peer ends it": func(_ *testing.T, _, server *rdmacm.Conn) error { return server.Close() },
		"a transfer failed": func(t *testing.T, client, _ *rdmacm.Conn) error {
			err := client.Write(bounded(t), ibverbs.RemoteBuffer{Addr: 1, RKey: 1, Len: 8}, alloc(t, client, 8).All())
			if !errors.Is(err, ibverbs.WCRemoteAccess) {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				client, server := connect(t, d.IPv4, &rdmacm.Config{RecvQueue: 16000}, nil)
				posting := make(chan struct{})
				var receives []*rdmacm.Receive
				posted := inBackground(func() error {
					for {
						r, err := client.PostRecv()
						if err != nil {
							return err
						}
						if receives = append(receives, r); len(receives) == 10 {
							close(posting)
						}
					}
				})
				<-posting
				require.NoError(t, end(t, client, server))
				err := take(t, posted, "posting")
				ctx := bounded(t)
				for i, r := range receives {
					_, waitErr := r.Wait(ctx)
					require.NoError(t, ctx.Err(), "receive %d of %d; it is over because of: %v; %v", i, len(receives), client.Err(), waitErr)
				}
				t.Logf("%d receives; posting: %v", len(receives), err)
			}
		})
	}
}
