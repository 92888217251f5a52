// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"
)

func init() {
	hostPrograms["devices server"] = func(args []string, stdout, stderr io.Writer) int {
		return status(stderr, serveDevices(context.Background(), args[0], func(text string) { fmt.Fprintln(stdout, text) }))
	}
	// use prints the error of Use. If it has an address as argument, two
	// devices shall have it.
	hostPrograms["use"] = func(args []string, stdout, _ io.Writer) int {
		var c softroce.Config
		for i, a := range append(args, args...) {
			c.Devices = append(c.Devices, softroce.DeviceConfig{Name: fmt.Sprintf("soft%d", i), Addresses: []netip.Addr{netip.MustParseAddr(a)}})
		}
		fmt.Fprintln(stdout, softroce.Use(c))
		return 0
	}
	hostPrograms["devices"] = func(_ []string, stdout, _ io.Writer) int {
		_, err := ibverbs.Devices()
		fmt.Fprintln(stdout, err)
		return 0
	}
}

// twoDevices are the devices of the tests, of which one has an address that no
// interface has and that is not a loopback address.
const twoDevices = "VERBENA_DEVICES=soft0=127.0.0.1;soft1=127.0.0.2,198.18.77.1"

// serveDevices listens at an address and says where. For each connection, it
// says which device has it, and for each message what it is.
func serveDevices(ctx context.Context, at string, say func(text string)) error {
	ln, err := rdmacm.Listen(ctx, at, nil)
	if err != nil {
		return err
	}
	defer ln.Close()
	say(fmt.Sprint(ln.Addr().Port()))
	return ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
		conn, err := req.Accept(ctx, &rdmacm.Config{MessageSize: 64})
		if err != nil {
			return
		}
		defer conn.Close()
		say(fmt.Sprintf("%s at %v", conn.PD().Device().Name(), req.LocalAddr().Addr()))
		for m, err := range conn.Messages(ctx) {
			if err != nil {
				return
			}
			say(string(m.Data))
		}
	})
}

// startServer starts such a server in this process.
func startServer(t *testing.T, at string) (port string, said <-chan string) {
	t.Helper()
	all := make(chan string, 64)
	ctx, cancel := context.WithCancel(bounded(t))
	var done sync.WaitGroup
	done.Go(func() { _ = serveDevices(ctx, at, func(text string) { all <- text }) })
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
	return next(t, all), all
}

// dialFrom connects from an address, or from the usual one.
func dialFrom(ctx context.Context, from, to string) (*rdmacm.Conn, error) {
	d := rdmacm.Dialer{LocalAddr: from, Config: rdmacm.Config{MessageSize: 64}}
	return d.Dial(ctx, to)
}

// say sends a text.
func say(t *testing.T, conn *rdmacm.Conn, text string) error {
	memory, err := conn.Alloc(64, 0)
	require.NoError(t, err)
	defer func() { _ = memory.Close() }() // fails if the device is removed
	return conn.Send(bounded(t), memory.Sub(0, copy(memory.Bytes(), text)))
}

func open(t *testing.T, name string) *ibverbs.Device {
	t.Helper()
	d, err := ibverbs.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// addressesOf returns the addresses in the GID table of a device.
func addressesOf(t *testing.T, d *ibverbs.Device) (all []string) {
	t.Helper()
	entries, err := d.QueryPortGIDs(1)
	require.NoError(t, err)
	for _, e := range entries {
		all = append(all, e.GID.Addr().String())
	}
	return all
}

func card(t *testing.T, name string) *softroce.Card {
	t.Helper()
	c, err := softroce.FindCard(name)
	require.NoError(t, err)
	return c
}

// Each device has its own name, GUID and addresses.
func TestDevices(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft", twoDevices) {
		return
	}
	all, err := ibverbs.Devices()
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "soft0", all[0].Name)
	require.Equal(t, "soft1", all[1].Name)
	require.NotEqual(t, all[0].GUID, all[1].GUID)
	d0, d1 := open(t, "soft0"), open(t, "soft1")
	require.Equal(t, []string{"127.0.0.1"}, addressesOf(t, d0))
	require.Equal(t, []string{"127.0.0.2", "198.18.77.1"}, addressesOf(t, d1))

	processes, err := softroce.Processes(bounded(t))
	require.NoError(t, err)
	for _, p := range processes {
		if p.PID != os.Getpid() {
			continue
		}
		require.Len(t, p.Devices, 2)
		require.Equal(t, "soft0", p.Devices[0].Name)
		require.Equal(t, 1, p.Devices[0].Objects.Contexts)
		require.Equal(t, "soft1", p.Devices[1].Name)
		require.Equal(t, []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("198.18.77.1")}, p.Devices[1].Addresses)
	}

	require.ErrorContains(t, softroce.Use(softroce.Config{Devices: []softroce.DeviceConfig{{Name: "soft0"}}}),
		"softroce.Use: devices: the device is in use already")
	require.NoError(t, softroce.Use(softroce.Config{Devices: []softroce.DeviceConfig{
		{Name: "soft0", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
		{Name: "soft1", Addresses: []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.2"), netip.MustParseAddr("198.18.77.1")}},
	}}))
	_, err = softroce.FindCard("soft2")
	require.EqualError(t, err, `softroce.FindCard: no device has the name "soft2": the devices are soft0, soft1`)
	var none *softroce.Card
	require.ErrorIs(t, none.Remove(), syscall.EINVAL)
	require.ErrorIs(t, new(softroce.Card).SetPort(true), syscall.EINVAL)
}

// One device may have all addresses that the others do not have.
func TestDeviceWithTheRest(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft", "VERBENA_DEVICES=all;one=127.0.0.1") {
		return
	}
	all, one := open(t, "all"), open(t, "one")
	require.NotContains(t, addressesOf(t, all), "127.0.0.1")
	require.Equal(t, []string{"127.0.0.1"}, addressesOf(t, one))
	require.NoError(t, card(t, "one").SetAddresses([]netip.Addr{netip.MustParseAddr("127.0.0.9")}))
	require.Contains(t, addressesOf(t, all), "127.0.0.1")
	require.Equal(t, []string{"127.0.0.9"}, addressesOf(t, one))
	require.NoError(t, card(t, "one").SetAddresses(nil))
	require.NotContains(t, addressesOf(t, all), "127.0.0.1")
	require.EqualError(t, softroce.SetAddresses([]netip.Addr{netip.MustParseAddr("127.0.0.1")}),
		"softroce.SetAddresses: 127.0.0.1 is an address of the device one")
	require.NotContains(t, addressesOf(t, all), "127.0.0.1")
}

// A queue pair of one device sends to one of the other, without the connection
// manager.
func TestBetweenDevices(t *testing.T) {
	for name, env := range map[string]string{
		"plain": "VERBENA_HOSTILE=", "hostile": "VERBENA_HOSTILE=between devices", "checked": "VERBENA_CHECK=1", "small": "VERBENA_LIMITS=smallest",
	} {
		t.Run(name, func(t *testing.T) {
			if !process.Alone(t, "VERBENA_DEVICE=soft", twoDevices, env) {
				return
			}
			var captured bytes.Buffer
			stop, err := softroce.Capture(&captured)
			require.NoError(t, err)
			a, b := newEnd(t, "soft0"), newEnd(t, "soft1")
			connectEnds(t, a, b)
			for i := range 100 {
				for _, way := range [][2]*end{{a, b}, {b, a}} {
					text := fmt.Sprintf("message %d", i)
					way[1].receive(t)
					way[0].send(t, text)
					require.Equal(t, text, way[1].received(t))
				}
			}
			require.NoError(t, stop())
			from := map[string]bool{}
			for _, r := range parse(t, captured.Bytes()) {
				from[netip.AddrFrom4([4]byte(r.ip[12:16])).String()] = true
			}
			require.Equal(t, map[string]bool{"127.0.0.1": true, "198.18.77.1": true}, from)

			// Only one end's port has to be down.
			for _, down := range []string{"soft0", "soft1"} {
				require.NoError(t, card(t, down).SetPort(false))
				b.receive(t)
				a.post(t, "lost")
				require.Equal(t, ibverbs.WCRetryExceeded, a.complete(t).Status())
				require.NoError(t, card(t, down).SetPort(true))
				connectEnds(t, a, b)
			}
		})
	}
}

// end is a queue pair with its objects.
type end struct {
	device   *ibverbs.Device
	qp       *ibverbs.QP
	send1    *ibverbs.SendBatch
	recv1    *ibverbs.RecvBatch
	scq, rcq *ibverbs.CQ
	out, in  *ibverbs.MR
}

func newEnd(t *testing.T, device string) *end {
	t.Helper()
	closing := func(c io.Closer) { t.Cleanup(func() { require.NoError(t, c.Close()) }) }
	e := &end{device: open(t, device)}
	pd, err := e.device.AllocPD()
	require.NoError(t, err)
	closing(pd)
	for _, mr := range []**ibverbs.MR{&e.out, &e.in} {
		*mr, err = pd.Alloc(64, ibverbs.AccessLocalWrite)
		require.NoError(t, err)
		closing(*mr)
	}
	for _, cq := range []**ibverbs.CQ{&e.scq, &e.rcq} {
		*cq, err = e.device.CreateCQ(ibverbs.CQConfig{CompQueue: 8})
		require.NoError(t, err)
		closing(*cq)
	}
	e.qp, err = pd.CreateQP(ibverbs.QPConfig{SendCQ: e.scq, RecvCQ: e.rcq, SendQueue: 4, RecvQueue: 4})
	require.NoError(t, err)
	closing(e.qp)
	e.send1, err = ibverbs.NewSendBatch(1, 1)
	require.NoError(t, err)
	e.recv1, err = ibverbs.NewRecvBatch(1, 1)
	require.NoError(t, err)
	return e
}

// connectEnds connects two ends, which may have been connected before.
func connectEnds(t *testing.T, a, b *end) {
	t.Helper()
	for _, e := range []*end{a, b} {
		require.NoError(t, e.qp.ToReset())
	}
	one, err := a.qp.Addr(ibverbs.QPAddrConfig{})
	require.NoError(t, err)
	other, err := b.qp.Addr(ibverbs.QPAddrConfig{})
	require.NoError(t, err)
	config := ibverbs.ConnectConfig{Timeout: 10 * time.Millisecond}
	require.NoError(t, a.qp.ConnectTo(one, other, config))
	require.NoError(t, b.qp.ConnectTo(other, one, config))
}

func (e *end) receive(t *testing.T) {
	t.Helper()
	e.recv1.Reset()
	require.NoError(t, e.recv1.Recv(1, e.in.All()))
	_, err := e.qp.PostRecv(e.recv1)
	require.NoError(t, err)
}

func (e *end) post(t *testing.T, text string) {
	t.Helper()
	e.send1.Reset()
	require.NoError(t, e.send1.Send(1, ibverbs.SendSignaled, e.out.Sub(0, copy(e.out.Bytes(), text))))
	_, err := e.qp.PostSend(e.send1)
	require.NoError(t, err)
}

func (e *end) complete(t *testing.T) *ibverbs.WC { return one(t, e.scq) }

func (e *end) send(t *testing.T, text string) {
	t.Helper()
	e.post(t, text)
	wc := e.complete(t)
	require.NoError(t, wc.Err())
}

func (e *end) received(t *testing.T) string {
	t.Helper()
	wc := one(t, e.rcq)
	require.NoError(t, wc.Err())
	return string(e.in.Bytes()[:wc.ByteLen()])
}

// one polls a completion.
func one(t *testing.T, cq *ibverbs.CQ) *ibverbs.WC {
	t.Helper()
	wcs := make([]ibverbs.WC, 1)
	for n := 0; n == 0; {
		var err error
		n, err = cq.Spin(wcs, ibverbs.MaxSpin)
		require.NoError(t, err)
		require.NoError(t, bounded(t).Err())
	}
	return &wcs[0]
}

// Objects of different devices do not go together, whatever layer is asked.
func TestObjectsOfTwoDevices(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft", twoDevices) {
		return
	}
	a, b := newEnd(t, "soft0"), newEnd(t, "soft1")
	pd := a.qp.PD().Raw()
	srq, err := libibverbs.CreateSrq(b.qp.PD().Raw(), &libibverbs.SrqInitAttr{Attr: libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}})
	require.NoError(t, err)
	defer func() { require.NoError(t, libibverbs.DestroySrq(srq)) }()
	own, other := a.scq.Raw(), b.scq.Raw()
	for name, attr := range map[string]libibverbs.QpInitAttr{
		"send queue":           {SendCq: other, RecvCq: own},
		"receive queue":        {SendCq: own, RecvCq: other},
		"shared receive queue": {SendCq: own, RecvCq: own, Srq: srq},
	} {
		attr.QpType = libibverbs.IBV_QPT_RC
		attr.Cap = libibverbs.QpCap{MaxSendWr: 1, MaxRecvWr: 1, MaxSendSge: 1, MaxRecvSge: 1}
		_, err := libibverbs.CreateQp(pd, &attr)
		require.ErrorIs(t, err, syscall.EINVAL, name)
	}
	_, err = a.qp.PD().CreateQP(ibverbs.QPConfig{SendCQ: b.scq, RecvCQ: b.scq, SendQueue: 1, RecvQueue: 1})
	require.ErrorIs(t, err, syscall.EINVAL)
}

// The address chooses the device of a connection at both ends, in this process
// and between processes.
func TestConnectionsOfDevices(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft", twoDevices) {
		return
	}
	servers := map[string]func(t *testing.T, at string) (string, func() string){
		"in this process": func(t *testing.T, at string) (string, func() string) {
			port, said := startServer(t, at)
			return port, func() string { return next(t, said) }
		},
		"in another process": func(t *testing.T, at string) (string, func() string) {
			p := process.Start(t, process.Command(t, "devices server", at))
			return p.Line(), p.Line
		},
	}
	devices := map[string]string{"127.0.0.1": "soft0", "127.0.0.2": "soft1", "198.18.77.1": "soft1"}
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			for _, at := range []string{"0.0.0.0", "127.0.0.1", "127.0.0.2", "198.18.77.1"} {
				port, said := server(t, at+":0")
				for to, device := range devices {
					for from, own := range devices {
						conn, err := dialFrom(bounded(t), from, to+":"+port)
						if at != "0.0.0.0" && at != to {
							require.ErrorIs(t, err, syscall.ECONNREFUSED, "%s to %s, server at %s", from, to, at)
							continue
						}
						require.NoError(t, err, "%s to %s, server at %s", from, to, at)
						require.Equal(t, own, conn.PD().Device().Name())
						require.Equal(t, device+" at "+to, said())
						require.NoError(t, say(t, conn, from))
						require.Equal(t, from, said())
						require.NoError(t, conn.Close())
					}
					if at != "0.0.0.0" && at != to {
						continue
					}
					conn, err := dialFrom(bounded(t), "", to+":"+port) // the system chooses the source, as it does for TCP
					require.NoError(t, err)
					source := systemSource(to)
					if own, ours := devices[source]; ours {
						require.Equal(t, own, conn.PD().Device().Name(), "%s to %s", source, to)
					}
					require.Equal(t, device+" at "+to, said())
					require.NoError(t, conn.Close())
				}
			}
		})
	}
}

// systemSource returns the address from which the system sends to another. It
// returns "" if there is no route.
func systemSource(to string) string {
	c, err := net.Dial("udp", to+":9") // sends nothing
	if err != nil {
		return ""
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP.String()
}

// A process that has not chosen its devices reaches the addresses of one that
// has, although the machine does not have them, and the other way round.
func TestDevicesAndOthers(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft", "VERBENA_DEVICES=") {
		return
	}
	unknown := "198.18.77.1:7"
	ctx := bounded(t)
	_, err := dialFrom(ctx, "127.0.0.1", unknown)
	require.Error(t, err)

	cmd := process.Command(t, "devices server", "0.0.0.0:0")
	cmd.Env = append(cmd.Env, twoDevices)
	p := process.Start(t, cmd)
	port := p.Line()
	for to, device := range map[string]string{"127.0.0.1": "soft0", "127.0.0.2": "soft1", "198.18.77.1": "soft1"} {
		conn, err := dialFrom(ctx, "127.0.0.1", to+":"+port)
		require.NoError(t, err, to)
		require.Equal(t, device+" at "+to, p.Line())
		require.NoError(t, say(t, conn, "hello"))
		require.Equal(t, "hello", p.Line())
		require.NoError(t, conn.Close())
	}
	conn, err := dialFrom(ctx, "", "127.0.0.2:"+port) // from an address that this process has
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	p.Kill()
	_, err = dialFrom(ctx, "", "127.0.0.2:"+port)
	require.ErrorIs(t, err, syscall.ETIMEDOUT, "no process has the address any more")
}

// A device whose address no interface has connects to the interfaces'
// addresses of other processes.
func TestFromAddressOfNoInterface(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft", "VERBENA_DEVICES=soft0=198.18.77.1") {
		return
	}
	cmd := process.Command(t, "devices server", "0.0.0.0:0")
	cmd.Env = append(cmd.Env, "VERBENA_DEVICES=")
	p := process.Start(t, cmd)
	conn, err := dialFrom(bounded(t), "198.18.77.1", "127.0.0.1:"+p.Line())
	require.NoError(t, err)
	require.Equal(t, "soft0 at 127.0.0.1", p.Line())
	require.NoError(t, say(t, conn, "hello"))
	require.Equal(t, "hello", p.Line())
	require.NoError(t, conn.Close())
}

// A device takes over the address of one that was removed.
func TestAddressOfRemovedDevice(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft", "VERBENA_DEVICES=soft0;soft1=127.0.0.2") {
		return
	}
	require.NoError(t, card(t, "soft0").Remove())
	require.NoError(t, card(t, "soft1").SetAddresses([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}))
	port, said := startServer(t, "0.0.0.0:0")
	conn, err := dialFrom(bounded(t), "127.0.0.1", "127.0.0.1:"+port)
	require.NoError(t, err)
	require.Equal(t, "soft1 at 127.0.0.1", next(t, said))
	require.NoError(t, conn.Close())
}

// What happens to a device leaves the others alone, and gives events to those
// that use the device.
func TestFateOfOneDevice(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft", twoDevices) {
		return
	}
	ctx := bounded(t)
	port, said := startServer(t, "0.0.0.0:0")
	connect := func(address string) *rdmacm.Conn {
		conn, err := dialFrom(ctx, address, address+":"+port)
		require.NoError(t, err)
		require.Contains(t, next(t, said), " at "+address)
		return conn
	}
	works := func(conn *rdmacm.Conn) {
		t.Helper()
		require.NoError(t, say(t, conn, "works"))
		require.Equal(t, "works", next(t, said))
	}
	state := func(d *ibverbs.Device) link.State {
		p, err := d.QueryPort(1)
		require.NoError(t, err)
		return p.State
	}
	d0, d1 := open(t, "soft0"), open(t, "soft1")
	c0, c1 := connect("127.0.0.1"), connect("127.0.0.2")
	works(c0)
	works(c1)

	second := card(t, "soft1")
	require.NoError(t, second.SetPort(false))
	require.Equal(t, ibverbs.EventPortError, nextEvent(t, d1))
	require.Equal(t, link.Down, state(d1))
	require.Equal(t, link.Active, state(d0))
	works(c0)
	require.NoError(t, second.SetPort(true))
	require.Equal(t, ibverbs.EventPortActive, nextEvent(t, d1))
	works(c1)

	require.NoError(t, second.Remove())
	require.EqualError(t, second.Remove(), "softroce.Card.Remove: soft1: the device is removed")
	require.Equal(t, ibverbs.EventDeviceFatal, nextEvent(t, d1))
	require.ErrorIs(t, c1.Wait(ctx), syscall.ENODEV)
	require.NoError(t, c1.Close())
	works(c0)
	all, err := ibverbs.Devices()
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, "soft0", all[0].Name)
	_, err = rdmacm.Listen(ctx, "127.0.0.2:0", nil)
	require.ErrorIs(t, err, syscall.ENODEV)
	_, err = d1.AllocPD()
	require.ErrorIs(t, err, syscall.EIO)
	pd, err := d0.AllocPD()
	require.NoError(t, err)
	require.NoError(t, pd.Close())

	require.NoError(t, second.Insert())
	c1 = connect("127.0.0.2")
	works(c1)
	require.NoError(t, softroce.Remove()) // the first
	require.Equal(t, ibverbs.EventDeviceFatal, nextEvent(t, d0), "there was no event of soft1 before")
	require.ErrorIs(t, c0.Wait(ctx), syscall.ENODEV)
	require.NoError(t, c0.Close())
	works(c1)
	require.NoError(t, softroce.Insert())
	c0 = connect("127.0.0.1")
	works(c0)

	require.EqualError(t, second.SetAddresses([]netip.Addr{netip.MustParseAddr("127.0.0.1")}),
		"softroce.Card.SetAddresses: soft1: 127.0.0.1 is an address of the device soft0")
	require.NoError(t, second.SetAddresses([]netip.Addr{netip.MustParseAddr("127.0.0.3")}))
	works(c1)
	other := connect("127.0.0.3")
	works(other)
	for _, c := range []*rdmacm.Conn{c0, c1, other} {
		require.NoError(t, c.Close())
	}
}

// Faults tell the devices apart by their addresses.
func TestFaultsOfOneDevice(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft", twoDevices) {
		return
	}
	lost := netip.MustParseAddr("127.0.0.2")
	faults(t, func(p softroce.Packet) softroce.Fault { return softroce.Fault{Drop: p.Source == lost} })
	port, said := startServer(t, "0.0.0.0:0")
	conn, err := dialFrom(bounded(t), "127.0.0.1", "127.0.0.1:"+port)
	require.NoError(t, err)
	require.Equal(t, "soft0 at 127.0.0.1", next(t, said))
	require.NoError(t, conn.Close())
	ctx, cancel := context.WithCancelCause(t.Context())
	asked := errors.New("the request was lost")
	faults(t, func(p softroce.Packet) softroce.Fault {
		if p.Kind == softroce.KindREQ && p.Source == lost {
			go cancel(asked)
		}
		return softroce.Fault{Drop: p.Source == lost}
	})
	_, err = dialFrom(ctx, "127.0.0.2", "127.0.0.1:"+port)
	require.ErrorIs(t, err, asked)
}

// Datagrams to a multicast group arrive at all devices with members.
func TestMulticastOfDevices(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft", twoDevices) {
		return
	}
	ctx := bounded(t)
	join := func(from string) *rdmacm.DatagramConn {
		c, err := rdmacm.JoinGroup(ctx, netip.MustParseAddr("224.0.1.77"), &rdmacm.GroupConfig{LocalAddr: from})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
	members := map[string]*rdmacm.DatagramConn{"127.0.0.1": join("127.0.0.1"), "127.0.0.2": join("127.0.0.2")}
	for from, sender := range members {
		receives := map[string]*rdmacm.Receive{}
		for to, member := range members {
			memory, err := member.Alloc(64+ibverbs.GRHLen, ibverbs.AccessLocalWrite)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, memory.Close()) })
			receives[to], err = member.PostRecv(memory.All())
			require.NoError(t, err)
		}
		memory, err := sender.Alloc(64, 0)
		require.NoError(t, err)
		require.NoError(t, sender.Send(ctx, memory.Sub(0, copy(memory.Bytes(), from))))
		require.NoError(t, memory.Close())
		for to, r := range receives {
			_, err := r.Wait(ctx)
			require.NoError(t, err, "from %s to %s", from, to)
		}
	}
}

// On the network of all machines, each device has its addresses.
func TestDevicesOnUDP(t *testing.T) {
	pid := os.Getpid()
	own := func(n byte) string {
		return netip.AddrFrom4([4]byte{127, 160 + byte(pid>>13&31), byte(pid >> 5), byte(pid<<3) + n}).String()
	}
	one, other := own(1), own(2)
	if text := os.Getenv("VERBENA_DEVICES"); text != "" { // in the process that has them
		_, err := fmt.Sscanf(strings.NewReplacer(";", " ", "=", " ").Replace(text), "soft0 %s soft1 %s", &one, &other)
		require.NoError(t, err)
	}
	if !process.Alone(t, "VERBENA_DEVICE=soft:udp", fmt.Sprintf("VERBENA_DEVICES=soft0=%s;soft1=%s", one, other)) {
		return
	}
	require.Equal(t, []string{one}, addressesOf(t, open(t, "soft0")))
	port, said := startServer(t, "0.0.0.0:0")
	for from, own := range map[string]string{one: "soft0", other: "soft1"} {
		for to, device := range map[string]string{one: "soft0", other: "soft1"} {
			conn, err := dialFrom(bounded(t), from, to+":"+port)
			require.NoError(t, err)
			require.Equal(t, own, conn.PD().Device().Name())
			require.Equal(t, device+" at "+to, next(t, said))
			require.NoError(t, say(t, conn, from))
			require.Equal(t, from, next(t, said))
			require.NoError(t, conn.Close())
		}
	}
}

// Devices that cannot be are refused: by Use, and by the first call of programs
// that do not call Use.
func TestRefusedDevices(t *testing.T) {
	const text = "soft0=127.0.0.1;soft1=::1,127.0.0.1"
	want := `devices "soft0" and "soft1" both have the address 127.0.0.1`
	p := process.Run(t, process.Command(t, "use", "127.0.0.1"))
	require.Zero(t, p.Wait())
	require.Equal(t, "softroce.Use: devices: "+want+"\n", p.Stdout())
	for how, begin := range map[string]string{"use": "softroce.Use: devices: ", "devices": "VERBENA_DEVICE=soft: "} {
		cmd := process.Command(t, how)
		cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft", "VERBENA_DEVICES="+text)
		p := process.Run(t, cmd)
		require.Zero(t, p.Wait())
		require.Contains(t, p.Stdout(), begin)
		require.Contains(t, p.Stdout(), "VERBENA_DEVICES="+text+": "+want)
	}
}
