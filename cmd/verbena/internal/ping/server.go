// SPDX-License-Identifier: Apache-2.0

package ping

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/rdmacm"
)

// server answers the messages of clients.
type server struct {
	out           program.Output
	asJSON, quiet bool
	count         int        // number of clients to serve; 0 means any number
	mu            sync.Mutex // guards out
}

// happening is an event that the server prints.
type happening struct {
	Time     time.Time `json:"time"`
	Event    string    `json:"event"`   // listening, connected, ended or refused
	Address  string    `json:"address"` // address of the client, or of the server for the event listening
	Size     int       `json:"size,omitempty"`
	Answered int       `json:"answered,omitempty"`
	Error    string    `json:"error,omitempty"`
}

func (s *server) print(h happening) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.Time = time.Now()
	switch {
	case s.quiet && h.Event != "listening":
	case s.asJSON:
		_ = s.out.JSONLine(h) // an error means that the output is no longer read
	case h.Event == "listening":
		s.out.Printf("listening on %s\n", h.Address)
	case h.Event == "connected":
		s.out.Printf("%s connected, messages of %d bytes\n", h.Address, h.Size)
	case h.Event == "ended" && h.Error == "":
		s.out.Printf("%s ended, %d messages answered\n", h.Address, h.Answered)
	case h.Event == "ended":
		s.out.Printf("%s ended, %d messages answered: %s\n", h.Address, h.Answered, h.Error)
	default:
		s.out.Printf("%s refused: %s\n", h.Address, h.Error)
	}
}

func (s *server) run(ctx context.Context, address string) error {
	ln, err := rdmacm.Listen(ctx, address, nil)
	if err != nil {
		return err
	}
	s.print(happening{Event: "listening", Address: ln.Addr().String()})
	var clients sync.WaitGroup
	for n := 0; s.count == 0 || n < s.count; {
		var request *rdmacm.Request
		if request, err = ln.Accept(ctx); err != nil {
			break
		}
		size, ok := greeted(request.PrivateData())
		if !ok { // a client other than verbena ping does not count
			clients.Go(func() { s.refuse(request) })
			continue
		}
		n++
		clients.Go(func() { s.serve(ctx, request, size) })
	}
	clients.Wait()
	if ctx.Err() != nil { // the user has ended the server
		err = nil
	}
	return errors.Join(err, ln.Close())
}

// refuse rejects a request that does not come from verbena ping.
func (s *server) refuse(request *rdmacm.Request) {
	err := errors.Join(errors.New("the client is not verbena ping of this version"), request.Reject(nil))
	s.print(happening{Event: "refused", Address: request.RemoteAddr().String(), Error: err.Error()})
}

// serve answers the messages, of the given size, of one client until the
// connection ends.
func (s *server) serve(ctx context.Context, request *rdmacm.Request, size int) {
	client := request.RemoteAddr().String()
	e, err := newEnd(size)
	if err == nil {
		err = e.accept(ctx, request)
	}
	if err != nil {
		s.print(happening{Event: "refused", Address: client, Error: err.Error()})
		return
	}
	s.print(happening{Event: "connected", Address: client, Size: size})
	answered := 0
	for err == nil {
		var message *rdmacm.Message
		if message, err = e.messages.Next(ctx); err != nil {
			break
		}
		copy(e.memory.Bytes(), message.Data)
		if err = e.conn.Send(ctx, e.memory.Sub(0, len(message.Data))); err == nil {
			answered++
		}
	}
	if errors.Is(err, syscall.ECONNRESET) || ctx.Err() != nil {
		err = nil // the client has closed the connection, or the server ends
	}
	ended := happening{Event: "ended", Address: client, Answered: answered}
	if err = errors.Join(err, e.conn.Close()); err != nil {
		ended.Error = err.Error()
	}
	s.print(ended)
}
