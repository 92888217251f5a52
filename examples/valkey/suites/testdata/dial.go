// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"context"
	"net"
	"os"

	"github.com/verbena-go/verbena/examples/valkey/valkeyrdma"
	_ "github.com/verbena-go/verbena/softroce"
)

// suiteDial dials the server of the suite where the tests mean the port of a
// server on its own.
func suiteDial(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
	if _, port, _ := net.SplitHostPort(address); port != "6379" {
		return d.DialContext(ctx, network, address)
	}
	server := os.Getenv("VERBENA_SUITE_SERVER")
	if os.Getenv("VERBENA_SUITE_OVER") == "TCP" {
		return d.DialContext(ctx, network, server)
	}
	return valkeyrdma.Dial(ctx, network, server)
}

// The first connection starts goroutines that the device keeps, which are no
// leaks of a test.
func init() {
	if c, err := suiteDial(context.Background(), new(net.Dialer), "tcp", ":6379"); err == nil {
		_ = c.Close()
	}
}
