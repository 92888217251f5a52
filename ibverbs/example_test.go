// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

func ExampleDevices() {
	devices, err := ibverbs.Devices()
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range devices {
		fmt.Println(d.Name, d.GUID, d.NodeType, d.Transport)
	}
}

// Open a device, look at its first port, and make what a connection needs.
func Example() {
	device, err := ibverbs.Open("") // the first one
	if errors.Is(err, ibverbs.ErrNoDevice) {
		log.Fatal("no RDMA here: ", err)
	}
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()

	port, err := device.QueryPort(1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(device.Name(), port.State, port.ActiveMTU.Bytes())

	pd, err := device.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	defer pd.Close()
	mr, err := pd.Alloc(1<<20, ibverbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()

	channel, err := device.CreateCompChannel()
	if err != nil {
		log.Fatal(err)
	}
	defer channel.Close()
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 256, Channel: channel})
	if err != nil {
		log.Fatal(err)
	}
	defer cq.Close()
	qp, err := pd.CreateQP(ibverbs.QPConfig{
		SendCQ: cq, RecvCQ: cq, SendQueue: 128, RecvQueue: 128,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer qp.Close()
	fmt.Println("queue pair", qp.Num())
}

// Post a batch again and again, and wait for its completions.
func ExampleQP_PostSend() {
	var qp *ibverbs.QP // connected; see package rdmacm
	var cq *ibverbs.CQ // of its sends, made with a CompChannel
	var mr *ibverbs.MR

	const requests = 32
	batch, err := ibverbs.NewSendBatch(requests, 1)
	if err != nil {
		log.Fatal(err)
	}
	send := func(ctx context.Context) error {
		batch.Reset()
		for i := range requests {
			flags := ibverbs.SendFlags(0)
			if i == requests-1 {
				flags = ibverbs.SendSignaled // one completion for all
			}
			if err := batch.Send(uint64(i), flags, mr.Sub(i*64, 64)); err != nil {
				return err
			}
		}
		if _, err := qp.PostSend(batch); err != nil {
			return err
		}
		_, err := cq.WaitOne(ctx)
		return err
	}
	_ = send
}

// Wait for completions on the netpoller, with a deadline.
func ExampleCQ_Wait() {
	var cq *ibverbs.CQ // made with a CompChannel

	receive := func(ctx context.Context) error {
		completions := make([]ibverbs.WC, 16)
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		for {
			n, err := cq.Wait(ctx, completions)
			if err != nil {
				return err // context.DeadlineExceeded, or os.ErrClosed
			}
			for i := range completions[:n] {
				wc := &completions[i]
				if err := wc.Err(); err != nil {
					return err // a *WCError
				}
				fmt.Println("received", wc.ByteLen(), "bytes into", wc.ID())
			}
		}
	}
	_ = receive
}

// Look at completions one after the other, as they come.
func ExampleCQ_Completions() {
	var ctx context.Context
	var cq *ibverbs.CQ // made with a CompChannel

	for wc, err := range cq.Completions(ctx) {
		if err != nil {
			log.Print(err) // a *WCError, or the end of ctx or of cq
			break
		}
		fmt.Println("received", wc.ByteLen(), "bytes into", wc.ID())
	}
}

// Send bytes that are not registered: the batch copies them.
func ExampleInlineBytes() {
	batch, err := ibverbs.NewSendBatch(1, 1)
	if err != nil {
		log.Fatal(err)
	}
	message := ibverbs.InlineBytes([]byte("hello"))
	fmt.Println(batch.Send(1, ibverbs.SendSignaled, message))
	fmt.Println(batch.Send(1, ibverbs.SendSignaled|ibverbs.SendInline, message))
	// Output:
	// ibv_post_send (IBV_WR_SEND, request 0 of the batch): segment 0: a segment from InlineBytes, of 5 bytes, can only be sent, with SendInline
	// <nil>
}

// A failed work request is an error with a status and a class.
func ExampleWCStatus_Class() {
	var err error = &ibverbs.WCError{Status: ibverbs.WCRetryExceeded, ID: 7, QPNum: 17}

	var wcErr *ibverbs.WCError
	if errors.As(err, &wcErr) && wcErr.Class() == ibverbs.WCClassTransport {
		fmt.Println(err)
	}
	fmt.Println(errors.Is(err, ibverbs.WCRetryExceeded))
	// Output:
	// work request 7 on QP 17: transport retry counter exceeded: the peer did not answer: it is gone, or packets are lost
	// true
}

func ExampleSendBatch() {
	batch, err := ibverbs.NewSendBatch(2, 0)
	if err != nil {
		log.Fatal(err)
	}
	for id := range uint64(3) {
		if err := batch.SendImm(id, 42, ibverbs.SendSignaled); errors.Is(err, ibverbs.ErrBatchFull) {
			fmt.Println("full with", batch.Len())
		}
	}
	// Output: full with 2
}

func ExampleRemoteBuffer_Sub() {
	peer := ibverbs.RemoteBuffer{Addr: 0x10000, RKey: 0x77, Len: 4096} // as the peer sent it
	part := peer.Sub(1024, 512)
	fmt.Printf("%#x %d\n", part.Addr, part.Len)
	// Output: 0x10400 512
}

// A program that uses queue pairs on a device lets a goroutine read the
// device's events.
func ExampleDevice_Events() {
	c, err := ibverbs.Open("")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for ev, err := range c.Events(context.Background()) {
			switch {
			case errors.Is(err, os.ErrClosed): // by Close below
			case err != nil:
				log.Print(err)
			case ev.Type == ibverbs.EventPortError:
				log.Printf("port %d of %s is down", ev.Port(), c.Name())
			case ev.Type.Fatal() && ev.QP() != nil:
				log.Print(ev) // such as: QP 17 of mlx5_0: local access violation work queue error
				_ = ev.QP().SetError()
			}
		}
	}()

	// ... queue pairs and their work ...

	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
}
