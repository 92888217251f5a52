// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"
)

// config makes a connection fail at once when a packet is lost, so that the
// program, and not the device, has to send again. Most programs let the device
// try some times.
var config = &rdmacm.Config{RetryCount: -1, AckTimeout: 50 * time.Millisecond}

// server passes on the messages of all clients until ctx ends. It returns its
// address.
func server(ctx context.Context) (address string, messages <-chan string, err error) {
	ln, err := rdmacm.Listen(ctx, "127.0.0.1:0", nil)
	if err != nil {
		return "", nil, err
	}
	all := make(chan string, 16)
	go func() {
		defer ln.Close()
		_ = ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
			conn, err := req.Accept(ctx, &rdmacm.Config{MessageSize: 64})
			if err != nil {
				return
			}
			defer conn.Close()
			for m, err := range conn.Messages(ctx) {
				if err != nil {
					return
				}
				all <- string(m.Data)
			}
		})
	}()
	return ln.Addr().String(), all, nil
}

// send connects and sends messages. It returns how many have arrived.
func send(ctx context.Context, address string, texts ...string) (arrived int, err error) {
	conn, err := rdmacm.Dial(ctx, address, config)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	memory, err := conn.Alloc(64, 0)
	if err != nil {
		return 0, err
	}
	for _, text := range texts {
		if err := conn.Send(ctx, memory.Sub(0, copy(memory.Bytes(), text))); err != nil {
			return arrived, err
		}
		arrived++
	}
	return arrived, conn.Shutdown(ctx)
}

// A program that connects anew when its connection fails: does it get through
// when packets are lost?
func ExampleSetFaults() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address, messages, err := server(ctx)
	if err != nil {
		log.Fatal(err)
	}

	var lost atomic.Int32
	softroce.SetFaults(func(p softroce.Packet) softroce.Fault {
		return softroce.Fault{Drop: p.Kind == softroce.KindSend && lost.Add(1) <= 2}
	})
	defer softroce.SetFaults(nil)

	for attempt := 1; attempt <= 5; attempt++ {
		_, err := send(ctx, address, "hello")
		fmt.Printf("attempt %d: retries exceeded: %v\n", attempt, errors.Is(err, ibverbs.WCRetryExceeded))
		if err == nil {
			break
		}
	}
	fmt.Println("the server has", <-messages)
	// Output:
	// attempt 1: retries exceeded: true
	// attempt 2: retries exceeded: true
	// attempt 3: retries exceeded: false
	// the server has hello
}

// A peer that dies between two messages: does the program know which one has
// arrived?
func ExampleSetFaults_deadPeer() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address, messages, err := server(ctx)
	if err != nil {
		log.Fatal(err)
	}

	var sent atomic.Int32
	softroce.SetFaults(func(p softroce.Packet) softroce.Fault {
		if p.Kind == softroce.KindSend && p.First {
			sent.Add(1)
		}
		return softroce.Fault{Drop: sent.Load() > 1} // nothing comes or goes any more
	})
	defer softroce.SetFaults(nil)

	arrived, err := send(ctx, address, "first", "second")
	fmt.Printf("%d message has arrived; the peer does not answer: %v\n", arrived, errors.Is(err, ibverbs.WCRetryExceeded))
	fmt.Println("the server has", <-messages)
	// Output:
	// 1 message has arrived; the peer does not answer: true
	// the server has first
}

// A file for Wireshark, of everything that a program sends.
func ExampleCapture() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address, messages, err := server(ctx)
	if err != nil {
		log.Fatal(err)
	}

	file, err := os.Create(filepath.Join(os.TempDir(), "verbena-example.pcap"))
	if err != nil {
		log.Fatal(err)
	}
	defer os.Remove(file.Name())
	stop, err := softroce.Capture(file)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := send(ctx, address, "hello"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the server has", <-messages)
	fmt.Println("errors:", errors.Join(stop(), file.Close()))
	// Output:
	// the server has hello
	// errors: <nil>
}

// A test of a program that goes on with the second card when the first fails
// has two devices. TestMain chooses them.
func ExampleConfig_devices() {
	if err := softroce.Use(softroce.Config{Devices: []softroce.DeviceConfig{
		{Name: "soft0", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
		{Name: "soft1", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.2")}},
	}}); err != nil {
		log.Fatal(err)
	}
	first, err := softroce.FindCard("soft0")
	if err != nil {
		log.Fatal(err)
	}
	if err := first.SetPort(false); err != nil { // the cable is pulled
		log.Fatal(err)
	}
	devices, err := ibverbs.Devices()
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range devices {
		fmt.Println(d.Name)
	}
}

// A package's tests run on a device with one segment in a request and without
// inline data. TestMain chooses it.
func ExampleConfig_limits() {
	if err := softroce.Use(softroce.Config{Limits: "sge=1,inline=0"}); err != nil {
		log.Fatal(err)
	}
	device, err := ibverbs.Open("soft0")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	attr, err := device.QueryDevice()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(attr.MaxSGE, "segment")
}
