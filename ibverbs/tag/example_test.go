// SPDX-License-Identifier: Apache-2.0

package tag_test

import (
	"context"
	"fmt"
	"log"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/tag"
)

// Let the device find the receive of each message by its tag. Here, the queue
// pair sends the message to itself.
func ExamplePost() {
	device, err := ibverbs.Open("")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	pd, err := device.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	defer pd.Close()
	mr, err := pd.Alloc(4096, ibverbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	channel, err := device.CreateCompChannel()
	if err != nil {
		log.Fatal(err)
	}
	defer channel.Close()
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 64, Fields: ibverbs.WCStandard | ibverbs.WCWithTMInfo, Channel: channel})
	if err != nil {
		log.Fatal(err)
	}
	defer cq.Close()
	caps, err := device.QueryDevice()
	if err != nil {
		log.Fatal(err)
	}
	srq, err := pd.CreateSRQ(ibverbs.SRQConfig{
		Type: ibverbs.SRQTypeTagMatching, CQ: cq, RecvQueue: 16, MaxTags: min(16, caps.TagMatching.MaxTags), MaxTagOps: 8,
	})
	if err != nil { // errors.ErrUnsupported on most devices
		log.Fatal(err)
	}
	defer srq.Close()
	qp, err := pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SRQ: srq, SendQueue: 1, MaxInline: 64})
	if err != nil {
		log.Fatal(err)
	}
	defer qp.Close()
	self, err := qp.Addr(ibverbs.QPAddrConfig{})
	if err != nil {
		log.Fatal(err)
	}
	if err := qp.ConnectTo(self, self, ibverbs.ConnectConfig{}); err != nil {
		log.Fatal(err)
	}

	batch, err := tag.NewBatch(1, 1)
	if err != nil {
		log.Fatal(err)
	}
	recv := tag.Recv{Tag: 7, Mask: 0xFF, ID: 1}
	if err := batch.Add(tag.Op{}, recv, mr.Sub(0, 4096)); err != nil {
		log.Fatal(err)
	}
	if _, err := tag.Post(srq, batch); err != nil {
		log.Fatal(err)
	}

	message, err := tag.Header{Kind: tag.MessageEager, Tag: 0x107, Context: 5}.AppendBinary(nil)
	if err != nil {
		log.Fatal(err)
	}
	send, err := ibverbs.NewSendBatch(1, 1)
	if err != nil {
		log.Fatal(err)
	}
	if err := send.Send(2, ibverbs.SendInline, ibverbs.InlineBytes(append(message, "hello"...))); err != nil {
		log.Fatal(err)
	}
	if _, err := qp.PostSend(send); err != nil {
		log.Fatal(err)
	}
	wcs := make([]ibverbs.WC, 1)
	if _, err := cq.Wait(context.Background(), wcs); err != nil {
		log.Fatal(err)
	}
	if err := wcs[0].Err(); err != nil {
		log.Fatal(err)
	}
	value, context := wcs[0].TMInfo()
	fmt.Printf("receive %d: tag %#x, context %d, data %q\n", wcs[0].ID(), value, context, mr.Bytes()[:wcs[0].ByteLen()])
	// Output: receive 1: tag 0x107, context 5, data "hello"
}

// Make a message that has a tag.
func ExampleHeader() {
	header := tag.Header{Kind: tag.MessageEager, Tag: 7, Context: 1}
	message, err := header.AppendBinary(nil)
	if err != nil {
		log.Fatal(err)
	}
	message = append(message, "hello"...)
	fmt.Printf("%q\n", message)
	// Output: "\x03\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\ahello"
}

// Take apart what arrived in a receive of SRQ.PostRecv, because no receive in
// the tag list matched it.
func ExampleParseHeader() {
	message := []byte("\x03\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x07hello")
	header, data, err := tag.ParseHeader(message)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(header.Kind == tag.MessageEager, header.Tag, header.Context, string(data))
	// Output: true 7 1 hello
}
