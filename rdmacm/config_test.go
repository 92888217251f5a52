package rdmacm_test

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestSetupFails(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	broken := errors.New("no coffee")
	config := &rdmacm.Config{Setup: func(c *rdmacm.Conn) error {
		if _, err := c.Alloc(4096, ibverbs.AccessLocalWrite); err != nil {
			return err
		}
		return broken
	}}
	_, err := rdmacm.Dial(ctx, ln.Addr().String(), config)
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "set up the connection: no coffee")

	result := acceptOne(ctx, ln, config)
	_, err = rdmacm.Dial(ctx, ln.Addr().String(), nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "the peer is told")
	require.ErrorIs(t, (<-result).err, broken)
}

// Memory that Setup has registered by other means keeps a failed attempt's
// protection domain, until the caller closes both.
func TestSetupLeavesMemory(t *testing.T) {
	d := needDevice(t)
	var mr *ibverbs.MR
	var conn *rdmacm.Conn
	_, err := rdmacm.Dial(bounded(t), d.IPv4.String()+":7", &rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
		conn = c
		mr, err = c.PD().Register(make([]byte, 100), ibverbs.AccessLocalWrite)
		return err
	}})
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	var busy *ibverbs.BusyError
	require.ErrorAs(t, err, &busy)
	require.NoError(t, mr.Close())
	require.NoError(t, conn.Close())
}

func TestSharedProtectionDomain(t *testing.T) {
	d := needDevice(t)
	device := find(t, d.Name)
	require.NotNil(t, device)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	mr, err := pd.Alloc(64, ibverbs.AccessLocalWrite)
	require.NoError(t, err)

	shared := &rdmacm.Config{PD: pd}
	client1, server1 := connect(t, d.IPv4, shared, shared)
	client2, server2 := connect(t, d.IPv4, shared, shared)
	ctx := bounded(t)
	for i, ends := range [][2]*rdmacm.Conn{{client1, server1}, {client2, server2}} {
		require.Same(t, pd, ends[0].PD())
		source, sink := mr.Sub(16*i, 8), mr.Sub(16*i+8, 8)
		copy(source.Bytes(), fmt.Sprint("message", i))
		pending, err := ends[1].PostRecv(sink)
		require.NoError(t, err)
		require.NoError(t, ends[0].Send(ctx, source))
		_, err = pending.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("message", i), string(sink.Bytes()))
	}
	var busy *ibverbs.BusyError
	require.ErrorAs(t, pd.Close(), &busy)
	for _, conn := range []*rdmacm.Conn{client1, server1, client2, server2} {
		require.NoError(t, conn.Close())
	}
	require.NotNil(t, mr.Bytes(), "is not the connections'")
	require.NoError(t, mr.Close())
	require.NoError(t, pd.Close())
}

func TestForeignProtectionDomain(t *testing.T) {
	d := needDevice(t)
	device, err := ibverbs.Open(d.Name) // not as librdmacm has it open
	require.NoError(t, err)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	_, err = rdmacm.Dial(bounded(t), d.IPv4.String()+":7", &rdmacm.Config{PD: pd})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "Config.PD is not of the connection's device: make it on the device from rdmacm.Devices or Listener.Device")
	var refused *ibverbs.ArgumentError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "rdma_create_qp", refused.Op)
	require.NoError(t, pd.Close())
	require.NoError(t, device.Close())
}

// Where one end allows no reads and atomics, they are refused instead of waiting
// for ever, and the rest goes on.
func TestReadsWithoutDepth(t *testing.T) {
	d := needDevice(t)
	for _, depths := range [][2]int{{-1, 0}, {0, -1}, {-1, -1}} {
		for _, mode := range modes {
			client, server := connect(t, d.IPv4,
				&rdmacm.Config{ReadDepth: depths[0], ManualQP: mode.manualClient},
				&rdmacm.Config{ReadDepth: depths[1], ManualQP: mode.manualServer})
			here, there := alloc(t, client, 8), alloc(t, server, 8)
			ctx := bounded(t)
			for _, err := range []error{
				client.Read(ctx, here.All(), there.Remote()), server.Read(ctx, there.All(), here.Remote()),
				client.FetchAdd(ctx, there.Remote(), 1, here.All()), client.CompareSwap(ctx, there.Remote(), 0, 1, here.All()),
			} {
				require.ErrorIs(t, err, syscall.EINVAL)
				require.ErrorContains(t, err, "ReadDepth")
			}
			require.NoError(t, client.Write(ctx, there.Remote(), here.All()))
		}
	}
}

func TestReadDepth(t *testing.T) {
	d := needDevice(t)
	for _, tt := range []struct{ depth, want int }{{1, 1}, {4, 4}, {-1, 0}} {
		t.Run(fmt.Sprint(tt.depth), func(t *testing.T) {
			ctx := bounded(t)
			ln := listenOn(t, d.IPv4)
			result := acceptOne(ctx, ln, nil)
			client, err := rdmacm.Dial(ctx, ln.Addr().String(), &rdmacm.Config{ReadDepth: tt.depth})
			require.NoError(t, err)
			server := <-result
			require.NoError(t, server.err)
			require.EqualValues(t, tt.want, server.req.Event().ResponderResources)
			require.EqualValues(t, tt.want, server.req.Event().InitiatorDepth)
			require.NoError(t, client.Close())
			require.NoError(t, server.conn.Close())
		})
	}
}

func TestManyConnectionsThroughOneListener(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	stop := serve(t, ln)
	for range 50 {
		conn, err := rdmacm.Dial(bounded(t), ln.Addr().String(), nil)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	stop()

	const atOnce = 20
	var servers sync.WaitGroup
	ctx := bounded(t)
	conns := make(chan *rdmacm.Conn, 2*atOnce)
	results := make(chan error)
	for range atOnce {
		servers.Go(func() {
			a := <-acceptOne(ctx, ln, nil)
			if a.err != nil {
				t.Error(a.err)
				return
			}
			conns <- a.conn
		})
		each(results, func() error {
			conn, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
			if err == nil {
				conns <- conn
			}
			return err
		})
	}
	for range atOnce {
		require.NoError(t, <-results)
	}
	servers.Wait()
	close(conns)
	var closing sync.WaitGroup
	for conn := range conns {
		closing.Go(func() {
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closing.Wait()
}
