// A web server whose threads answer /N with "hello N " 2000 times, deflated. Argument: its port.
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import java.util.zip.Deflater;

public class Page {
    public static void main(String[] arguments) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 0);
        server.createContext("/", exchange -> {
            String number = exchange.getRequestURI().getPath().substring(1);
            byte[] text = ("hello " + number + " ").repeat(2000).getBytes();
            byte[] packed = new byte[40000];
            Deflater deflater = new Deflater();
            deflater.setInput(text);
            deflater.finish();
            int length = deflater.deflate(packed);
            deflater.end();
            exchange.sendResponseHeaders(200, length);
            exchange.getResponseBody().write(packed, 0, length);
            exchange.close();
        });
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.start();
    }
}
