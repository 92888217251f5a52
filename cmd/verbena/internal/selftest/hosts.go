// SPDX-License-Identifier: Apache-2.0

package selftest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/links"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/peer"
	"github.com/verbena-go/verbena/rdmacm"
)

// serve is the server's end of a selftest between two hosts.
func (o *options) serve(ctx context.Context, out program.Output) error {
	host := o.operands[0]
	if o.device != "" && host == "" {
		info, err := o.find()
		if err != nil {
			return err
		}
		local, err := o.local(info.Device.Name, netip.Addr{})
		if err != nil {
			return err
		}
		host = local.String()
	}
	var refused program.Recurring
	tell := func(text string) { out.Printf("%s\n", text) }
	server := &peer.Server{Clients: o.clients, Tell: func(h peer.Happening) {
		text := fmt.Sprintf("%v %s", h.Client, h.Event)
		if h.Err != nil {
			text += ": " + h.Err.Error()
		}
		if h.Event == "refused" {
			refused.Tell(tell, text)
			return
		}
		refused.Reset()
		tell(text)
	}}
	if err := server.Listen(ctx, net.JoinHostPort(host, strconv.Itoa(o.at))); err != nil {
		return err
	}
	out.Printf("listening on %v\n", server.Addr())
	return errors.Join(server.Serve(ctx), server.Close())
}

// local returns an IP address of a device, of the same family as another, if
// that is valid.
func (o *options) local(device string, like netip.Addr) (netip.Addr, error) {
	a, err := links.Address(device, o.port, like)
	if err == nil && !a.IsValid() {
		err = fmt.Errorf("port %d of %s has no IP address of the family that is needed: verbena devices -g lists its addresses", o.port, device)
	}
	return a, err
}

// exitAlone is the exit status if there is no session with the server, or it
// has ended too early: then the device is not judged.
const exitAlone = 3

// between is the time between two attempts to begin a session.
const between = time.Second

// join begins a session with the server, or returns nil if both ends are on
// this host. As long as -W says, it waits for a server that is not there yet or
// serves another client.
func (o *options) join(ctx context.Context, out program.Output, device string) (*peer.Session, error) {
	if o.operands[0] == "" {
		return nil, nil
	}
	start, waits := time.Now(), false
	for {
		session, why, err := o.tryJoin(ctx, device)
		switch {
		case err == nil:
			return session, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case why == unusable:
			return nil, err
		case why == other || time.Since(start) >= o.await:
			return nil, program.Failure(exitAlone, err)
		case !waits:
			waits = true
			fmt.Fprintf(out.Stderr, "waiting for the server: %v\n", err)
		}
		select {
		case <-time.After(between):
		case <-ctx.Done():
		}
	}
}

// obstacle is what keeps a session from beginning.
type obstacle int

const (
	unusable obstacle = iota // this end's device cannot be used
	other                    // another program listens there, or there is no such host
	absent                   // there is no server, yet, or it has another client
)

// tryJoin tries to begin a session with the server. If it cannot, it says what
// kept it from that; with several addresses, what is most likely to change.
func (o *options) tryJoin(ctx context.Context, device string) (_ *peer.Session, why obstacle, _ error) {
	host := o.operands[0]
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		if unknown, known := errors.AsType[*net.DNSError](err); known && unknown.IsNotFound {
			return nil, other, err
		}
		return nil, absent, err
	}
	limited, cancel := context.WithTimeout(ctx, o.patience)
	defer cancel()
	var errs []error
	for _, a := range addrs {
		local, err := o.local(device, a.Unmap())
		if err == nil {
			var session *peer.Session
			if session, err = peer.Join(limited, local, net.JoinHostPort(a.Unmap().String(), strconv.Itoa(o.at))); err == nil {
				return session, why, nil
			}
			why = max(why, obstacleOf(err))
		}
		errs = append(errs, err)
	}
	err = errors.Join(errs...)
	if limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no connection to %s within %v: %w; verbena doctor %s checks the path to it", host, o.patience, err, host)
	}
	return nil, why, err
}

// obstacleOf returns why a server could not be joined.
func obstacleOf(err error) obstacle {
	if errors.Is(err, peer.ErrOther) {
		return other
	}
	if _, told := errors.AsType[*rdmacm.EventError](err); told || errors.Is(err, context.DeadlineExceeded) {
		return absent
	}
	for _, errno := range []syscall.Errno{
		syscall.ECONNREFUSED, syscall.ETIMEDOUT, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENETDOWN, syscall.EHOSTDOWN,
	} {
		if errors.Is(err, errno) {
			return absent
		}
	}
	return unusable
}

// leave ends the session, if there is one. It returns why the session has ended
// before. If a check has failed, it asks the server whether it is still there.
func leave(ctx context.Context, session *peer.Session, failed bool) error {
	if session == nil {
		return nil
	}
	err := session.Err()
	if err == nil && failed {
		err = session.Probe(ctx)
	}
	if err != nil && ctx.Err() == nil {
		_ = session.Close()
		return program.Failure(exitAlone, fmt.Errorf("the server has ended or vanished: %w", err))
	}
	return session.Close()
}
