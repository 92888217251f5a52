// SPDX-License-Identifier: Apache-2.0

package tag_test

import (
	"context"
	"fmt"
	"log"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/tag"
)

// Let the device find the receive of each message by its tag.
func ExamplePost() {
	var (
		ctx  context.Context
		pd   *ibverbs.PD
		mr   *ibverbs.MR
		cq   *ibverbs.CQ // with CQConfig.Fields: WCStandard | WCWithTMInfo
		caps ibverbs.DeviceAttr
	)
	srq, err := pd.CreateSRQ(ibverbs.SRQConfig{
		Type: ibverbs.SRQTypeTagMatching, CQ: cq, RecvQueue: 64, MaxTags: caps.TagMatching.MaxTags, MaxTagOps: 8,
	})
	if err != nil { // errors.ErrUnsupported on most devices
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
	wcs := make([]ibverbs.WC, 1)
	if _, err := cq.Wait(ctx, wcs); err != nil {
		log.Fatal(err)
	}
	value, context := wcs[0].TMInfo()
	fmt.Println(value, context, wcs[0].Flags()&ibverbs.WCFlagTagMatched != 0)
}

// Send a message that has a tag.
func ExampleHeader() {
	var (
		mr    *ibverbs.MR
		batch *ibverbs.SendBatch
	)
	header := tag.Header{Kind: tag.MessageEager, Tag: 7, Context: 1}
	message, err := header.AppendBinary(mr.Bytes()[:0])
	if err != nil {
		log.Fatal(err)
	}
	message = append(message, "hello"...)
	if err := batch.Send(1, ibverbs.SendSignaled, mr.Sub(0, len(message))); err != nil {
		log.Fatal(err)
	}
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
