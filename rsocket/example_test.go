// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"

	"github.com/verbena-go/verbena/rsocket"
)

// A server sends back what it reads.
func ExampleListen() {
	ln, err := rsocket.Listen("rdma", "192.0.2.1:7471")
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	for {
		conn, err := ln.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer conn.Close()
			if _, err := io.Copy(conn, conn); err != nil {
				log.Print(err)
			}
		}()
	}
}

func ExampleDial() {
	conn, err := rsocket.Dial("rdma", "192.0.2.1:7471")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "hello")
	if err := conn.(*rsocket.Conn).CloseWrite(); err != nil {
		log.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", answer)
}

// A server sends each datagram back.
func ExampleListenPacket() {
	conn, err := rsocket.ListenPacket("rdma", "192.0.2.1:7471")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	b := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFrom(b)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := conn.WriteTo(b[:n], from); err != nil {
			log.Print(err)
		}
	}
}

// A client of HTTP takes TCP where RDMA does not reach the server, and says so.
func ExampleDialer() {
	dialer := rsocket.Dialer{
		Fallback: func(ctx context.Context, network, address string, cause error) (net.Conn, error) {
			log.Print("over TCP: ", cause)
			return rsocket.FallbackTCP(ctx, network, address, cause)
		},
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "rdma", address)
		},
	}}
	answer, err := client.Get("http://192.0.2.1:7471/")
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	fmt.Println(answer.Status)
}

// A server for a thousand connections with small windows.
func ExamplePool() {
	lc := rsocket.ListenConfig{Config: rsocket.Config{
		Pool:        &rsocket.Pool{Receives: 4096},
		ReadBuffer:  16 << 10,
		WriteBuffer: 16 << 10,
		SendQueue:   32,
		RecvQueue:   32,
	}}
	ln, err := lc.Listen(context.Background(), "rdma", "192.0.2.1:7471")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(ln, http.FileServer(http.Dir("."))))
}
