package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/verbena-go/verbena/internal/cerr"
)

// DatagramListener waits for those who want to send datagrams here, and ask
// for a queue pair. Its methods may be called concurrently.
type DatagramListener struct{ listener *Listener }

// ListenDatagram waits for requests at host:port, as Listen does. The ports are
// not those of Listen. The config may be nil.
func ListenDatagram(ctx context.Context, address string, config *ListenConfig) (*DatagramListener, error) {
	if err := ended("ListenDatagram", ctx); err != nil {
		return nil, err
	}
	ln, err := config.listen(ctx, PortSpaceUDP, address)
	if err != nil {
		return nil, fmt.Errorf("listen for datagrams on %s: %w", address, err)
	}
	return &DatagramListener{ln}, nil
}

// Addr returns the address that the listener has.
func (ln *DatagramListener) Addr() netip.AddrPort { return ln.listener.Addr() }

// Accept waits for a request. It must be accepted or rejected, which also gives
// its resources back. Accept returns an error that is ctx.Err() when ctx ends,
// and one that is os.ErrClosed on Close.
func (ln *DatagramListener) Accept(ctx context.Context) (*DatagramRequest, error) {
	req, err := ln.self().Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &DatagramRequest{req}, nil
}

// Close stops listening and rejects the requests that nobody has accepted. What
// was accepted stays.
func (ln *DatagramListener) Close() error { return ln.self().Close() }

func (ln *DatagramListener) self() *Listener {
	if ln == nil {
		return nil
	}
	return ln.listener
}

// DatagramRequest is a peer's question for a queue pair to send datagrams to.
type DatagramRequest struct{ request *Request }

// PrivateData returns what the peer sent with the request, and zeros up to the
// transport's maximum.
func (r *DatagramRequest) PrivateData() []byte { return r.request.PrivateData() }

// RemoteAddr returns the peer's address.
func (r *DatagramRequest) RemoteAddr() netip.AddrPort { return r.request.RemoteAddr() }

// LocalAddr returns the address that the peer asks at.
func (r *DatagramRequest) LocalAddr() netip.AddrPort { return r.request.LocalAddr() }

// Event returns the event that brought the request.
func (r *DatagramRequest) Event() *Event { return r.request.Event() }

// answer claims the request for the one answer that it can be given.
func (r *DatagramRequest) answer(op string) error {
	if r == nil {
		return (*Request)(nil).answer(op)
	}
	return r.request.answer(op)
}

// Accept makes a queue pair and tells the peer of it. That the peer has heard
// of it, and where its own is, the first datagram from it says. After an error
// the request is over; the peer was told. The config may be nil.
func (r *DatagramRequest) Accept(ctx context.Context, config *DatagramConfig) (*DatagramConn, error) {
	if err := r.answer("DatagramRequest.Accept"); err != nil {
		return nil, err
	}
	conn, err := r.accept(ctx, config.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	return conn, nil
}

func (r *DatagramRequest) accept(ctx context.Context, config DatagramConfig) (*DatagramConn, error) {
	if err := ended("accept", ctx); err != nil {
		return nil, errors.Join(err, r.request.drop())
	}
	if err := r.request.leaveListener(); err != nil {
		return nil, errors.Join(err, r.request.drop())
	}
	id := r.request.event.ID
	conn, err := newDatagramConn(r.request.dispatcher, id, config, 0)
	if err != nil {
		return nil, err
	}
	conn.local, conn.remote = id.LocalAddr(), id.RemoteAddr()
	// Closing an id with a request on it rejects that.
	if err = ended("accept", ctx); err == nil {
		err = id.Accept(ConnParam{PrivateData: config.PrivateData})
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// AcceptOn tells the peer of the queue pair of a DatagramConn that there is
// already, with private data of up to 136 bytes; so one can serve any number of
// peers. After an error the request is over; the peer was told.
func (r *DatagramRequest) AcceptOn(conn *DatagramConn, privateData []byte) error {
	if err := r.answer("DatagramRequest.AcceptOn"); err != nil {
		return err
	}
	// The id has no more to do: it knows nothing of the queue pair.
	if err := errors.Join(r.acceptOn(conn, privateData), r.request.drop()); err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	return nil
}

func (r *DatagramRequest) acceptOn(conn *DatagramConn, privateData []byte) error {
	if err := conn.Err(); err != nil {
		return err
	}
	id := r.request.event.ID
	device, err := id.Context()
	if err != nil {
		return err
	}
	if conn.pd.Device() != device || conn.port != id.PortNum() {
		return cerr.Refuse("rdma_accept", id.name(), "the queue pair is on another port than the one that the peer asks at")
	}
	return id.Accept(ConnParam{QPNum: conn.qp.Num(), PrivateData: privateData})
}

// Reject refuses the request. The peer gets the private data, of up to 136
// bytes. After an error the peer was told too, but without the data.
func (r *DatagramRequest) Reject(privateData []byte) error {
	if err := r.answer("DatagramRequest.Reject"); err != nil {
		return err
	}
	return errors.Join(r.request.event.ID.Reject(privateData), r.request.drop())
}
