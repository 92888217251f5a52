// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"
)

// patience is for what takes milliseconds, on a machine that is busy.
const patience = time.Minute

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// faults makes f say what happens to packets until the test ends.
func faults(t *testing.T, f func(softroce.Packet) softroce.Fault) {
	softroce.SetFaults(f)
	t.Cleanup(func() { softroce.SetFaults(nil) })
}

// start starts a server for the test.
func start(t *testing.T) (address string, messages <-chan string) {
	address, messages, err := server(bounded(t))
	require.NoError(t, err)
	return address, messages
}

// next returns the next message that a server has.
func next(t *testing.T, messages <-chan string) string {
	t.Helper()
	select {
	case m := <-messages:
		return m
	case <-bounded(t).Done():
		t.Fatal("the server has no message")
		return ""
	}
}

func sendOne(t *testing.T, address string) error {
	_, err := send(bounded(t), address, strings.Repeat("x", 60))
	return err
}

// Each packet of a short session is seen, with its fields.
func TestPackets(t *testing.T) {
	address, _ := start(t)
	var mu sync.Mutex
	seen := map[softroce.Kind]softroce.Packet{}
	faults(t, func(p softroce.Packet) softroce.Fault {
		mu.Lock()
		defer mu.Unlock()
		seen[p.Kind] = p
		return softroce.Fault{}
	})
	require.NoError(t, sendOne(t, address))
	softroce.SetFaults(nil)

	here := netip.MustParseAddr("127.0.0.1")
	for _, kind := range []softroce.Kind{softroce.KindREQ, softroce.KindREP, softroce.KindRTU, softroce.KindSend, softroce.KindAck, softroce.KindDREQ, softroce.KindDREP} {
		require.Contains(t, seen, kind, kind.String())
		p := seen[kind]
		require.Equal(t, here, p.Source, kind.String())
		require.Equal(t, here, p.Destination, kind.String())
		require.True(t, p.First && p.Last, kind.String())
		require.Equal(t, kind >= softroce.KindREQ, p.DestQP == 1, kind.String())
	}
	require.Equal(t, 60, seen[softroce.KindSend].Len)
	require.Equal(t, seen[softroce.KindSend].PSN, seen[softroce.KindAck].PSN)
}

// What a fault does to one packet of each kind is made good by sending again.
func TestFaults(t *testing.T) {
	for name, fault := range map[string]softroce.Fault{
		"drop":      {Drop: true},
		"corrupt":   {Corrupt: true},
		"duplicate": {Duplicate: 3},
		"delay":     {Delay: 2 * time.Millisecond},
		"all":       {Corrupt: true, Duplicate: 2, Delay: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			address, messages := start(t)
			hit := map[softroce.Kind]bool{}
			faults(t, func(p softroce.Packet) softroce.Fault {
				if hit[p.Kind] {
					return softroce.Fault{}
				}
				hit[p.Kind] = true
				return fault
			})
			ctx := bounded(t)
			conn, err := rdmacm.Dial(ctx, address, &rdmacm.Config{AckTimeout: 10 * time.Millisecond})
			require.NoError(t, err)
			defer conn.Close()
			memory, err := conn.Alloc(64, 0)
			require.NoError(t, err)
			for range 3 {
				require.NoError(t, conn.Send(ctx, memory.Sub(0, copy(memory.Bytes(), name))))
			}
			for range 3 { // the end of a connection whose RTU is lost takes the request away from the server
				require.Equal(t, name, next(t, messages))
			}
			require.NoError(t, conn.Shutdown(ctx))
			require.Empty(t, messages)
		})
	}
}

func TestKindStrings(t *testing.T) {
	for kind := softroce.KindSend; kind <= softroce.KindSIDRREP; kind++ {
		require.NotContains(t, kind.String(), "Kind(")
	}
	require.Equal(t, "SIDR_REP", softroce.KindSIDRREP.String())
	require.Equal(t, "Kind(0)", softroce.Kind(0).String())
	require.Equal(t, "Kind(21)", (softroce.KindSIDRREP + 1).String())
}

// record is a packet of a pcap file, from the IP header on.
type record struct {
	ip, bth []byte
}

func parse(t *testing.T, file []byte) (all []record) {
	require.GreaterOrEqual(t, len(file), 24)
	require.Equal(t, uint32(0xA1B23C4D), binary.NativeEndian.Uint32(file))
	require.Equal(t, uint32(101), binary.NativeEndian.Uint32(file[20:]), "raw IP")
	for file = file[24:]; len(file) > 0; {
		size, full := binary.NativeEndian.Uint32(file[8:]), binary.NativeEndian.Uint32(file[12:])
		require.Equal(t, size, full)
		ip := file[16 : 16+size]
		file = file[16+size:]
		require.Equal(t, byte(0x45), ip[0])
		require.Equal(t, int(size), int(binary.BigEndian.Uint16(ip[2:])))
		require.Equal(t, byte(17), ip[9], "UDP")
		udp := ip[20:]
		require.Equal(t, uint16(4791), binary.BigEndian.Uint16(udp[2:]))
		require.Equal(t, len(udp), int(binary.BigEndian.Uint16(udp[4:])))
		all = append(all, record{ip, udp[8:]})
	}
	return all
}

func TestCapture(t *testing.T) {
	address, _ := start(t)
	var file bytes.Buffer
	stop, err := softroce.Capture(&file)
	require.NoError(t, err)
	require.NoError(t, sendOne(t, address))
	require.NoError(t, stop())
	size := file.Len()
	require.NoError(t, sendOne(t, address))
	require.Equal(t, size, file.Len(), "nothing is written after stop")

	messages, sends := map[uint16]int{}, 0
	for _, r := range parse(t, file.Bytes()) {
		switch op, qpn := r.bth[0], binary.BigEndian.Uint32(r.bth[4:])&0xFFFFFF; {
		case qpn == 1:
			require.Equal(t, byte(0x64), op, "UD SEND only")
			require.Equal(t, uint32(0x80010000), binary.BigEndian.Uint32(r.bth[12:]), "Q_Key")
			require.Len(t, r.bth, 12+8+256+4)
			messages[binary.BigEndian.Uint16(r.bth[20+16:])]++
		case op == 4:
			sends++
			require.Equal(t, strings.Repeat("x", 60), string(r.bth[12:72]))
		}
	}
	require.Equal(t, 1, sends)
	for attribute, name := range map[uint16]string{0x10: "REQ", 0x13: "REP", 0x14: "RTU", 0x15: "DREQ", 0x16: "DREP"} {
		require.Positive(t, messages[attribute], name)
	}
}

// Wireshark's dissectors understand a capture, where tshark is installed.
func TestCaptureInWireshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("no tshark here; TestCapture reads the file itself")
	}
	address, _ := start(t)
	name := filepath.Join(t.TempDir(), "verbena.pcap")
	file, err := os.Create(name)
	require.NoError(t, err)
	stop, err := softroce.Capture(file)
	require.NoError(t, err)
	require.NoError(t, sendOne(t, address))
	require.NoError(t, errors.Join(stop(), file.Close()))

	out, err := exec.Command(tshark, "-r", name, "-T", "fields", "-e", "_ws.col.Protocol", "-e", "_ws.col.Info", "-e", "_ws.malformed").CombinedOutput()
	require.NoError(t, err, string(out))
	t.Logf("%s", out)
	for _, want := range []string{"CM: ConnectRequest", "CM: ConnectReply", "CM: ReadyToUse", "RC Send Only", "RC Acknowledge", "CM: DisconnectRequest"} {
		require.Contains(t, string(out), want)
	}
	require.NotContains(t, string(out), "alformed")
}

// failing is a file on a disk that is full.
type failing struct{ room int }

func (f *failing) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, syscall.ENOSPC
	}
	return len(b), nil
}

func TestCaptureFails(t *testing.T) {
	_, err := softroce.Capture(&failing{})
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "softroce.Capture: ")

	address, _ := start(t)
	stop, err := softroce.Capture(&failing{room: 100})
	require.NoError(t, err)
	require.NoError(t, sendOne(t, address), "the program does not notice")
	require.ErrorIs(t, stop(), syscall.ENOSPC)
}

// nextEvent returns the next asynchronous event of the device.
func nextEvent(t *testing.T, d *ibverbs.Device) ibverbs.EventType {
	e, err := d.NextEvent(bounded(t))
	require.NoError(t, err)
	return e.Type
}

func TestSetPort(t *testing.T) {
	d, err := ibverbs.Open("soft0")
	require.NoError(t, err)
	defer d.Close()
	address, _ := start(t)
	state := func() link.State {
		p, err := d.QueryPort(1)
		require.NoError(t, err)
		return p.State
	}
	require.Equal(t, link.Active, state())

	require.NoError(t, softroce.SetPort(false))
	defer func() { require.NoError(t, softroce.SetPort(true)) }()
	require.Equal(t, ibverbs.EventPortError, nextEvent(t, d))
	require.Equal(t, link.Down, state())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = rdmacm.Dial(ctx, address, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	require.NoError(t, softroce.SetPort(true))
	require.Equal(t, ibverbs.EventPortActive, nextEvent(t, d))
	require.Equal(t, link.Active, state())
	require.NoError(t, sendOne(t, address))
}

func TestSetAddresses(t *testing.T) {
	d, err := ibverbs.Open("soft0")
	require.NoError(t, err)
	defer d.Close()
	gids := func() (all []netip.Addr) {
		entries, err := d.QueryPortGIDs(1)
		require.NoError(t, err)
		for _, e := range entries {
			all = append(all, e.GID.Addr())
		}
		return all
	}
	machine := gids()
	require.Contains(t, machine, netip.MustParseAddr("127.0.0.1"))

	some := []netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8::77")}
	require.NoError(t, softroce.SetAddresses(some))
	defer func() { require.NoError(t, softroce.SetAddresses(nil)) }()
	require.Equal(t, some, gids())
	require.Equal(t, ibverbs.EventGIDChange, nextEvent(t, d))
	_, err = rdmacm.Listen(bounded(t), "127.0.0.1:0", nil)
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)

	for text, wrong := range map[string]netip.Addr{
		"invalid IP": {}, "0.0.0.0": netip.IPv4Unspecified(), "::": netip.IPv6Unspecified(), "224.0.0.1": netip.MustParseAddr("224.0.0.1"),
		"ff02::1": netip.IPv6LinkLocalAllNodes(),
	} {
		require.EqualError(t, softroce.SetAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.78"), wrong}),
			"softroce.SetAddresses: addresses[1] is "+text+", which is not a unicast address")
		require.Equal(t, some, gids(), "nothing has changed")
	}

	require.NoError(t, softroce.SetAddresses(nil))
	require.ElementsMatch(t, machine, gids())
	address, _ := start(t)
	require.NoError(t, sendOne(t, address))
}

// A device is removed with connections on it; the next one serves a program as
// the first did.
func TestRemoveAndInsert(t *testing.T) {
	for range 3 {
		d, err := ibverbs.Open("soft0")
		require.NoError(t, err)
		address, _ := start(t)
		ctx := bounded(t)
		conn, err := rdmacm.Dial(ctx, address, nil)
		require.NoError(t, err)

		require.False(t, d.Removed())
		require.NoError(t, softroce.Remove())
		require.True(t, d.Removed())
		require.ErrorContains(t, softroce.Remove(), "softroce.Remove: the device is removed")
		require.ErrorContains(t, softroce.SetPort(false), "the device is removed")
		require.ErrorContains(t, softroce.SetAddresses(nil), "the device is removed")
		require.Equal(t, ibverbs.EventDeviceFatal, nextEvent(t, d))
		require.ErrorIs(t, conn.Wait(ctx), syscall.ENODEV)
		require.NoError(t, conn.Close())
		_, err = d.AllocPD()
		require.ErrorIs(t, err, syscall.EIO)
		devices, err := ibverbs.Devices()
		require.NoError(t, err)
		require.Empty(t, devices)
		_, err = rdmacm.Dial(ctx, address, nil)
		require.ErrorIs(t, err, syscall.ENODEV)
		_, err = rdmacm.Listen(ctx, address, nil)
		require.ErrorIs(t, err, syscall.ENODEV)

		require.NoError(t, softroce.Insert())
		require.ErrorContains(t, softroce.Insert(), "softroce.Insert: a device is already plugged in")
		_, err = d.AllocPD()
		require.ErrorIs(t, err, syscall.EIO, "an open device stays removed")
		require.NoError(t, d.Close())
		address, messages := start(t)
		require.NoError(t, sendOne(t, address))
		require.Equal(t, strings.Repeat("x", 60), next(t, messages))
	}
}

func TestUseAgain(t *testing.T) {
	require.NoError(t, softroce.Use(softroce.Config{}))
	_, err := ibverbs.Devices()
	require.NoError(t, err)
	require.EqualError(t, softroce.Use(softroce.Config{Hostile: "late"}),
		`softroce.Use: hostile mode "late": the device is in use already`)
	require.EqualError(t, softroce.Use(softroce.Config{Limits: "sge=1"}),
		`softroce.Use: limits "sge=1": the device is in use already`)
	require.EqualError(t, softroce.Use(softroce.Config{Limits: "sge=0"}),
		`softroce.Use: limits "sge=0": sge is "0": want a number from 1 to 32`)
	require.ErrorContains(t, softroce.Use(softroce.Config{Limits: "siv"}),
		`softroce.Use: limits "siv": unknown limit "siv": want sge=N, `)
	require.ErrorContains(t, softroce.Use(softroce.Config{Limits: "siv"}), "or first a set, one of smallest, iwarp, ")
}
