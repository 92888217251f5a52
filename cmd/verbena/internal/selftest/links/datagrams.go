// SPDX-License-Identifier: Apache-2.0

package links

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/peer"
	"github.com/verbena-go/verbena/rdmacm"
)

var inDatagrams = []check.Feature{check.Datagrams}

var datagrams = []check.Check{
	{Name: "datagrams.messages", Proves: "a datagram service is found, and datagrams arrive and come back", Features: inDatagrams, Run: on(datagramMessages)},
	{Name: "datagrams.refused", Proves: "a refusal of a datagram service arrives with its reason and its private data", Features: inDatagrams, Run: on(datagramRefusals)},
	{Name: "datagrams.group", Proves: "a datagram to a multicast group arrives at each of its members", Features: inDatagrams, Run: on(group)},
}

// The most private data of requests and answers of datagram services, in bytes.
const (
	maxDatagramRequest = 180
	maxDatagramAnswer  = 136
)

// offersDatagrams ends the check if the device has no datagrams.
func (r *rig) offersDatagrams() {
	if r.iWARP() {
		r.Lacks("datagrams")
	}
}

// ask asks for a datagram service.
func (r *rig) ask(at netip.AddrPort, service peer.Service, ask, length int) (c *rdmacm.DatagramConn, in *rdmacm.Receiver, err error) {
	ctx, cancel := r.wait()
	defer cancel()
	d := rdmacm.Dialer{LocalAddr: r.session.Local.String()}
	c, err = d.DialDatagram(ctx, at.String(), &rdmacm.DatagramConfig{
		SendQueue: 2, RecvQueue: 4, PrivateData: r.session.Request(service, ask, length),
		Setup: func(c *rdmacm.DatagramConn) (err error) {
			in, err = c.NewReceiver()
			return err
		},
	})
	if err == nil {
		r.Close(c)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		r.Lacks("datagrams")
	}
	return c, in, err
}

func datagramMessages(r *rig) {
	r.offersDatagrams()
	at := r.service(peer.Datagrams, 0)
	for _, n := range []int{0, maxDatagramRequest} {
		r.Scope(func() {
			answer := n * maxDatagramAnswer / maxDatagramRequest
			c, in, err := r.ask(at, peer.Echo, answer, n)
			r.ok(err)
			r.want(peer.HasPattern(c.PeerData(), answer), "%d bytes of private data of an answer are not those that the server sent", answer)
			r.Reserve(c.MTU())
			out, err := c.Alloc(c.MTU(), 0)
			r.ok(err)
			for i, size := range []int{4, 64, c.MTU()} {
				copy(out.Bytes(), filled(size, byte(i+1)))
				r.exchange(in, out.Bytes()[:size], func(ctx context.Context) error { return c.Send(ctx, out.Sub(0, size)) })
			}
		})
	}
	_, _, err := r.ask(at, peer.Echo, 0, maxDatagramRequest+1)
	r.want(err != nil, "a request of a datagram service with more private data than there is room for succeeds")
}

// exchange sends a datagram until it comes back: the network may lose it.
func (r *rig) exchange(in *rdmacm.Receiver, data []byte, send func(context.Context) error) {
	ctx, cancel := r.wait()
	defer cancel()
	for lost := 0; ; lost++ {
		r.ok(send(ctx))
		one, stop := context.WithTimeout(ctx, r.Patience()/8)
		m, err := in.Next(one)
		for err == nil && len(m.Data) != len(data) { // a repetition of an earlier one
			m, err = in.Next(one)
		}
		stop()
		switch {
		case err == nil:
			r.want(bytes.Equal(m.Data, data), "a datagram of %d bytes came back as another one of %d bytes", len(data), len(m.Data))
			if lost > 0 {
				r.Notef("%d datagrams of %d bytes were lost", lost, len(data))
			}
			return
		case ctx.Err() != nil:
			r.Failf("a datagram of %d bytes did not come back although it was sent %d times", len(data), lost+1)
		case one.Err() == nil:
			r.ok(err)
		}
	}
}

func datagramRefusals(r *rig) {
	r.offersDatagrams()
	at := r.service(peer.Datagrams, 0)
	for _, ask := range []int{0, maxDatagramAnswer} {
		_, _, err := r.ask(at, peer.Refused, ask, 0)
		var refused *rdmacm.RejectedError
		r.want(errors.As(err, &refused), "the refusal is %v", err)
		r.want(refused.Reason == rdmacm.ReasonConsumer, "the reason of the refusal is %v", refused.Reason)
		r.want(peer.HasPattern(refused.PrivateData, ask), "%d bytes of private data of a refusal are not those that the server sent", ask)
	}
	_, _, err := r.ask(r.service(peer.Unused, 0), peer.Echo, 0, 0)
	r.Case("no such datagram service", spec(rdmacm.ReasonNoListener.String()), ended(err))
}

func group(r *rig) {
	r.offersDatagrams()
	if r.attr.MaxMcastGroups == 0 {
		r.Lacks("multicast groups")
	}
	n := rand.IntN(1 << 16)
	address := netip.AddrFrom4([4]byte{239, 255, byte(n >> 8), byte(n)}) // of the site
	if r.session.Local.Is6() {
		address = netip.MustParseAddr(fmt.Sprintf("ff15::%x", n+1))
	}
	var members []*rdmacm.Receiver
	var first *rdmacm.DatagramConn
	for range 2 {
		var in *rdmacm.Receiver
		ctx, cancel := r.wait()
		c, err := rdmacm.JoinGroup(ctx, address, &rdmacm.GroupConfig{LocalAddr: r.session.Local.String(), Config: rdmacm.DatagramConfig{
			SendQueue: 2, RecvQueue: 4, Setup: func(c *rdmacm.DatagramConn) (err error) {
				in, err = c.NewReceiver()
				return err
			},
		}})
		cancel()
		if errors.Is(err, errors.ErrUnsupported) {
			r.Lacks("multicast groups")
		}
		r.ok(err)
		r.Close(c)
		members = append(members, in)
		if first == nil {
			first = c
		}
	}
	r.Reserve(64)
	out, err := first.Alloc(64, 0)
	r.ok(err)
	copy(out.Bytes(), filled(64, 7))
	for _, in := range members {
		r.exchange(in, out.Bytes(), func(ctx context.Context) error { return first.Send(ctx, out.All()) })
	}
}
