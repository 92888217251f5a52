package rdmacm_test

import (
	"context"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// toldBound is how soon a peer must hear of a Close whose first message is lost:
// the kernel sends it again some 4 s later.
const toldBound = 30 * time.Second

// Close tells the peer even if the message of the end is lost: the system sends
// it again after Close has returned.
func TestCloseOverLossyLink(t *testing.T) {
	needTwoHosts(t)
	server := startPeer(t, "server", netip.AddrPortFrom(there, 0).String(), "-1s")
	address := server.hear(patience)
	for name, tt := range map[string]struct {
		config rdmacm.Config
		end    func(*rdmacm.Conn) error
	}{
		"Close":    {rdmacm.Config{}, (*rdmacm.Conn).Close},
		"Shutdown": {rdmacm.Config{}, func(c *rdmacm.Conn) error { return c.Shutdown(context.Background()) }},
		"manual":   {rdmacm.Config{ManualQP: true}, (*rdmacm.Conn).Close},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := rdmacm.Dial(bounded(t), address, &tt.config)
			require.NoError(t, err)
			require.Equal(t, "up", server.hear(patience))
			mend := cut(t)
			start := time.Now()
			ended := make(chan time.Duration, 1)
			go func() {
				if err := tt.end(conn); err != nil {
					t.Error(err)
				}
				ended <- time.Since(start)
			}()
			lost(t)
			mend()
			require.Equal(t, "over: <nil>", server.hear(toldBound))
			t.Logf("%s took %v; the peer heard of it after %v", name, take(t, ended, name), time.Since(start))
		})
	}
}

// A peer that does not answer, because its program does not, holds the id for no
// longer than Linger; everything else is given back at once.
func TestLingerIsBounded(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	noKernelLeaks(t, d)
	for name, tt := range map[string]struct {
		linger time.Duration
		is     error
	}{
		"bounded": {300 * time.Millisecond, syscall.ETIMEDOUT},
		"none":    {-1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ln := newEnd(t)
			require.NoError(t, ln.id.BindAddr(netip.AddrPortFrom(d.IPv4, 0)))
			require.NoError(t, ln.id.Listen(1))
			asked := inBackground(func() error {
				req := next(t, ln.ch, rdmacm.EventConnectRequest).ID
				t.Cleanup(func() { require.NoError(t, req.Close()) })
				return req.Accept(rdmacm.ConnParam{QPNum: newQP()})
			})
			conn, err := rdmacm.Dial(bounded(t), ln.id.LocalAddr().String(), &rdmacm.Config{Linger: tt.linger})
			require.NoError(t, err)
			require.NoError(t, take(t, asked, "the acceptance"))
			before := kernelObjects(t, d.Name)
			require.NoError(t, conn.Close())
			after := kernelObjects(t, d.Name)
			for _, kind := range []string{"qp", "cq", "pd"} {
				require.Equal(t, before[kind]-1, after[kind], kind)
			}
			require.ErrorIs(t, conn.ID().Disconnect(), os.ErrClosed)
			err = conn.Shutdown(bounded(t))
			require.ErrorIs(t, err, tt.is)
			soon(t, "the id is given back", func() bool { return kernelObjects(t, d.Name)["cm_id"] == before["cm_id"]-1 })
		})
	}
}

// Shutdown returns when the peer has answered, or has ended the connection
// itself.
func TestShutdown(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	require.NoError(t, client.Shutdown(bounded(t)))
	require.NoError(t, server.Wait(bounded(t)))
	require.NoError(t, server.Shutdown(bounded(t)))
	require.NoError(t, server.Shutdown(bounded(t)), "again")
	require.NoError(t, server.Close())
}
