package ibverbs_test

import (
	"context"
	"fmt"
	"log"

	"github.com/verbena-go/verbena/ibverbs"
)

// Let the device find the receive of each message by its tag.
func ExampleSRQ_PostTagOps() {
	var (
		ctx  context.Context
		pd   *ibverbs.PD
		mr   *ibverbs.MR
		cq   *ibverbs.CQ // with CQConfig.Fields: WCStandard | WCWithTMInfo
		caps ibverbs.DeviceAttr
	)
	srq, err := pd.CreateSRQ(ibverbs.SRQConfig{
		Type: ibverbs.SRQTypeTagMatching, CQ: cq, MaxWR: 64, MaxTags: caps.TagMatching.MaxTags, MaxTagOps: 8,
	})
	if err != nil { // errors.ErrUnsupported on most devices
		log.Fatal(err)
	}
	ops, err := ibverbs.NewTagBatch(1, 1)
	if err != nil {
		log.Fatal(err)
	}
	recv := ibverbs.TagRecv{Tag: 7, Mask: 0xFF, ID: 1}
	if err := ops.Add(ibverbs.TagOp{}, recv, mr.Sub(0, 4096)); err != nil {
		log.Fatal(err)
	}
	if _, err := srq.PostTagOps(ops); err != nil {
		log.Fatal(err)
	}
	wcs := make([]ibverbs.WC, 1)
	if _, err := cq.Wait(ctx, wcs); err != nil {
		log.Fatal(err)
	}
	tag, context := wcs[0].TMInfo()
	fmt.Println(tag, context, wcs[0].Flags()&ibverbs.WCFlagTagMatched != 0)
}

// Send a message that has a tag.
func ExampleTagHeader() {
	var (
		mr    *ibverbs.MR
		batch *ibverbs.SendBatch
	)
	header := ibverbs.TagHeader{Message: ibverbs.TagMessageEager, Tag: 7, Context: 1}
	message, err := header.AppendBinary(mr.Bytes()[:0])
	if err != nil {
		log.Fatal(err)
	}
	message = append(message, "hello"...)
	if err := batch.Send(1, ibverbs.SendSignaled, mr.Sub(0, len(message))); err != nil {
		log.Fatal(err)
	}
}
