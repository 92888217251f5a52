// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// What protoc and its plug-ins for Go would generate from
//
//	service Capitals {
//	  rpc Upper(stream google.protobuf.StringValue) returns (stream google.protobuf.StringValue);
//	}
//
// is short enough to be written by hand.

// upperName is the name of the call.
const upperName = "/verbena.examples.Capitals/Upper"

var service = grpc.ServiceDesc{
	ServiceName: "verbena.examples.Capitals",
	HandlerType: (*capitalsServer)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "Upper", ServerStreams: true, ClientStreams: true,
		Handler: func(server any, stream grpc.ServerStream) error {
			return server.(capitalsServer).Upper(&grpc.GenericServerStream[wrapperspb.StringValue, wrapperspb.StringValue]{ServerStream: stream})
		},
	}},
}

// capitalsServer is the interface of a server.
type capitalsServer interface {
	Upper(grpc.BidiStreamingServer[wrapperspb.StringValue, wrapperspb.StringValue]) error
}

// capitals implements the server.
type capitals struct{}

// Upper returns each text in capitals, until the client has no more.
func (capitals) Upper(stream grpc.BidiStreamingServer[wrapperspb.StringValue, wrapperspb.StringValue]) error {
	for {
		text, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(wrapperspb.String(strings.ToUpper(text.Value))); err != nil {
			return err
		}
	}
}

// texts is the client's stream of a call.
type texts struct {
	grpc.BidiStreamingClient[wrapperspb.StringValue, wrapperspb.StringValue]
}

// upper begins the call.
func upper(ctx context.Context, client grpc.ClientConnInterface) (*texts, error) {
	stream, err := client.NewStream(ctx, &service.Streams[0], upperName)
	if err != nil {
		return nil, err
	}
	return &texts{&grpc.GenericClientStream[wrapperspb.StringValue, wrapperspb.StringValue]{ClientStream: stream}}, nil
}

// turn sends a text and waits for the server's answer. If the server ends the
// call, Recv returns the reason.
func (s *texts) turn(text string) (string, error) {
	if err := s.Send(wrapperspb.String(text)); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	answer, err := s.Recv()
	if err != nil {
		return "", err
	}
	return answer.Value, nil
}
