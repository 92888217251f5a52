// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

func init() {
	hostPrograms["xrc send"] = func(args []string, stdout, stderr io.Writer) int { return status(stderr, xrcSend(args)) }
	hostPrograms["xrc receive"] = func(args []string, stdout, stderr io.Writer) int { return status(stderr, xrcReceive(args[0], stdout)) }
	hostPrograms["xrc domain"] = func(args []string, stdout, stderr io.Writer) int { return status(stderr, xrcDomain(args[0])) }
}

const xrcMessage = 4096

// xrcAnswer is the private data with which a receiver accepts: the number of
// its shared receive queue.
func xrcAnswer(srq *ibverbs.SRQ) (rdmacm.ConnParam, error) {
	number, err := srq.Num()
	return rdmacm.ConnParam{PrivateData: binary.BigEndian.AppendUint32(nil, number)}, err
}

// xrcDial connects to a receiver, and returns a batch with a message to it.
func xrcDial(ctx context.Context, to netip.AddrPort) (*endpoint.Endpoint, *ibverbs.SendBatch, error) {
	ep, err := endpoint.Create(ctx, rdmacm.AddrInfo{QPType: ibverbs.QPTypeXRCSend, Dst: to}, nil, &ibverbs.QPConfig{SendQueue: 4})
	if err != nil {
		return nil, nil, err
	}
	accepted, err := ep.Connect(ctx, rdmacm.ConnParam{})
	if err != nil {
		return nil, nil, err
	}
	memory, err := ep.RegMsgs(make([]byte, xrcMessage))
	if err != nil {
		return nil, nil, err
	}
	batch, err := ibverbs.NewSendBatch(1, 1)
	if err != nil {
		return nil, nil, err
	}
	if err := batch.Send(0, ibverbs.SendSignaled, memory.All()); err != nil {
		return nil, nil, err
	}
	return ep, batch, batch.WR(0).SetXRCSRQ(binary.BigEndian.Uint32(accepted.PrivateData))
}

// xrcSend sends a number of messages, or until it fails or is killed.
func xrcSend(args []string) error {
	ctx := context.Background()
	ep, batch, err := xrcDial(ctx, netip.MustParseAddrPort(args[0]))
	if err != nil {
		return err
	}
	messages := math.MaxInt
	if len(args) > 1 {
		if messages, err = strconv.Atoi(args[1]); err != nil {
			return err
		}
	}
	for range messages {
		if _, err := ep.QP().PostSend(batch); err != nil {
			return err
		}
		wc, err := ep.SendComp(ctx)
		if err != nil {
			return err
		}
		if err := wc.Err(); err != nil {
			return err
		}
	}
	return nil
}

// xrcReceive listens at an address, accepts a connection and receives messages
// until it is killed.
func xrcReceive(at string, stdout io.Writer) error {
	ctx := context.Background()
	ep, err := requested(ctx, stdout, rdmacm.AddrInfo{QPType: ibverbs.QPTypeXRCRecv, Src: netip.AddrPortFrom(netip.MustParseAddr(at), 0)})
	if err != nil {
		return err
	}
	srq, err := ep.CreateSRQ(nil, ibverbs.SRQConfig{RecvQueue: 4})
	if err != nil {
		return err
	}
	if _, err := ep.CreateQP(nil, ibverbs.QPConfig{}); err != nil {
		return err
	}
	memory, err := ep.RegMsgs(make([]byte, xrcMessage))
	if err != nil {
		return err
	}
	answer, err := xrcAnswer(srq)
	if err != nil {
		return err
	}
	if err := ep.Accept(ctx, answer); err != nil {
		return err
	}
	for {
		if err := ep.PostRecv(0, memory.All()); err != nil {
			return err
		}
		if _, err := ep.RecvComp(ctx); err != nil {
			return err
		}
	}
}

// xrcDomain opens the XRC domain of a file.
func xrcDomain(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	device, err := ibverbs.Open("")
	if err != nil {
		return err
	}
	domain, err := device.OpenXRCD(ibverbs.XRCDConfig{File: f, Create: true})
	if err != nil {
		return err
	}
	return domain.Close()
}

// A file names a domain of one process. Another process that opens the file is
// told so, and has the domain when the first has closed it.
func TestXRCDomainsAreOfOneProcess(t *testing.T) {
	device := cmtest.Find(t, "soft0")
	f, err := os.Create(t.TempDir() + "/domain")
	require.NoError(t, err)
	defer f.Close()
	domain, err := device.OpenXRCD(ibverbs.XRCDConfig{File: f, Create: true})
	require.NoError(t, err)
	other := peer(t, "xrc domain", f.Name())
	require.Equal(t, 1, other.Wait())
	require.Contains(t, other.Stderr(), "operation not supported")
	require.NoError(t, domain.Close())
	require.Zero(t, peer(t, "xrc domain", f.Name()).Wait())
}

// Processes that send to one shared receive queue are killed, one after the
// other. The others go on, and the queue stays as it is.
func TestXRCSendersAreKilled(t *testing.T) {
	ctx := cmtest.Bounded(t)
	ln, err := endpoint.Create(ctx, rdmacm.AddrInfo{
		Flags: rdmacm.AddrPassive, QPType: ibverbs.QPTypeXRCRecv, Src: netip.MustParseAddrPort("127.0.0.1:0"),
	}, nil, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	require.NoError(t, ln.Listen(4))
	device := cmtest.Find(t, "soft0")
	domain, err := device.OpenXRCD(ibverbs.XRCDConfig{})
	require.NoError(t, err)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 64})
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(ibverbs.SRQConfig{Type: ibverbs.SRQTypeXRC, RecvQueue: 16, XRCD: domain, CQ: cq})
	require.NoError(t, err)
	mr, err := pd.Alloc(xrcMessage, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	recv, err := ibverbs.NewRecvBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, recv.Recv(0, mr.All()))
	for range 16 {
		_, err = srq.PostRecv(recv)
		require.NoError(t, err)
	}
	const senders = 4
	var children []*process.Process
	var servers []*endpoint.Endpoint
	for range senders {
		child := peer(t, "xrc send", ln.ID().LocalAddr().String())
		server, err := ln.GetRequest(ctx)
		require.NoError(t, err)
		_, err = server.CreateQP(pd, ibverbs.QPConfig{XRCD: domain})
		require.NoError(t, err)
		answer, err := xrcAnswer(srq)
		require.NoError(t, err)
		require.NoError(t, server.Accept(ctx, answer))
		children, servers = append(children, child), append(servers, server)
	}
	// receive takes messages until each living sender has sent one more.
	receive := func() {
		missing := map[uint32]bool{}
		for _, s := range servers {
			missing[s.QP().Num()] = true
		}
		wcs := make([]ibverbs.WC, 8)
		left := func() (n int) {
			for _, m := range missing {
				if m {
					n++
				}
			}
			return n
		}
		for end := time.Now().Add(time.Minute); left() > 0; {
			require.True(t, time.Now().Before(end), "messages are missing")
			n, err := cq.Poll(wcs)
			require.NoError(t, err)
			for _, wc := range wcs[:n] {
				missing[wc.QPNum()] = false
				_, err = srq.PostRecv(recv)
				require.NoError(t, err)
			}
		}
	}
	receive()
	for _, child := range children {
		child.Kill()
		ended := servers[0]
		servers = servers[1:]
		receive()
		cmtest.NextOf(t, ended, rdmacm.EventDisconnected)
		require.NoError(t, ended.Close())
	}
	require.NoError(t, srq.Close())
	for _, c := range []io.Closer{mr, cq, pd, domain} {
		require.NoError(t, c.Close())
	}
}

// The process that receives is killed: the request in progress fails.
func TestXRCReceiverIsKilled(t *testing.T) {
	ctx := cmtest.Bounded(t)
	child := peer(t, "xrc receive", "127.0.0.1")
	ep, batch, err := xrcDial(ctx, netip.MustParseAddrPort(child.Line()))
	require.NoError(t, err)
	for range 100 {
		_, err = ep.QP().PostSend(batch)
		require.NoError(t, err)
		wc, err := ep.SendComp(ctx)
		require.NoError(t, err)
		require.NoError(t, wc.Err())
	}
	child.Kill()
	_, err = ep.QP().PostSend(batch)
	require.NoError(t, err)
	var failed *ibverbs.WCError
	_, err = ep.SendComp(ctx)
	require.ErrorAs(t, err, &failed)
	require.Contains(t, []ibverbs.WCStatus{ibverbs.WCRetryExceeded, ibverbs.WCFlushed}, failed.Status)
	require.NoError(t, ep.Close())
}

// Two processes on the network of all machines.
func TestXRCOnNetwork(t *testing.T) {
	pid := os.Getpid()
	address := func(n byte) string {
		return netip.AddrFrom4([4]byte{127, 224 + byte(pid>>13&31), byte(pid >> 5), byte(pid<<3) + n}).String()
	}
	receiver := peerOn(t, "soft:udp="+address(1), "xrc receive", address(1))
	sender := peerOn(t, "soft:udp="+address(2), "xrc send", receiver.Line(), "200")
	require.Zero(t, sender.Wait(), sender.Stderr())
	receiver.Kill()
}
