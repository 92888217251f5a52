// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/measure"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// FigureTests are what the service Figures measures; a request asks for one by
// its index. Both ends sleep until there are completions: they may share a
// processor.
var FigureTests = []measure.Test{
	figure(measure.Send, false, 64, 1000),
	figure(measure.Read, false, 64, 1000),
	figure(measure.Write, true, 64<<10, 1000),
	figure(measure.Read, true, 64<<10, 1000),
}

func figure(op measure.Op, bandwidth bool, size, iterations int) measure.Test {
	return measure.Test{
		Op: op, Bandwidth: bandwidth, Transport: ibverbs.QPTypeRC, Sizes: []int{size}, QPs: 1, Iterations: iterations,
		Depth: 16, List: 1, Moderation: 4, Receives: 64, Fit: measure.Fit{Receives: true, Inline: true}, Events: true,
	}
}

// Figure returns where a client measures, with a server at an address whose
// control connection has a port.
func Figure(device *ibverbs.Device, port int, at netip.Addr, tcp uint16) measure.Where {
	w := measure.Where{Device: device.Name(), Port: port, TCPPort: int(tcp)}
	if at.IsValid() {
		w.Server = at.String()
	}
	// iWARP devices have no other way to connect.
	w.RDMACM = device.Raw().Device.TransportType == libibverbs.IBV_TRANSPORT_IWARP
	return w
}

// figures is the other end of a measurement.
func (v *visit) figures(request *rdmacm.Request, _ string, which byte) (s service, err error) {
	if int(which) >= len(FigureTests) {
		return s, fmt.Errorf("there is no measurement %d", which)
	}
	id := request.Event().ID
	device, err := id.Device()
	if err != nil {
		return s, err
	}
	tcp, err := freePort(request.LocalAddr().Addr().String())
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithCancel(v.ctx)
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		test := FigureTests[which]
		ended <- measure.Run(ctx, &test, Figure(device, id.PortNum(), netip.Addr{}, uint16(tcp)), measure.Tell{
			Ready: func() { close(ready) }, Row: func(measure.Row) {},
		})
	}()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		return s, err
	}
	run := func(context.Context) { <-ended } // the client tells what was wrong
	return service{netip.AddrPortFrom(request.LocalAddr().Addr(), uint16(tcp)), run, func() error { cancel(); return nil }}, nil
}
