# Nokogiri before 1.19.3 loses the parameters of XSLT::Stylesheet#transform if one has a null byte. A table of 3,000 strings has a bound.
require "nokogiri"

SHEET = Nokogiri::XSLT(<<~XSL)
  <xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
    <xsl:param name="title"/>
    <xsl:template match="/"><out><xsl:value-of select="$title"/></out></xsl:template>
  </xsl:stylesheet>
XSL
ANSWERS = {}

def handle(number)
  document = Nokogiri::XML("<d>" + "<r>#{number}</r>" * 20 + "</d>")
  SHEET.transform(document, Nokogiri::XSLT.quote_params(["title", "t#{number}" * 50])).to_s.size
end

def broken
  parameters = (0...200).to_h { |i| ["p#{i}", "'v'"] }
  parameters["last"] = "a\0b"
  SHEET.transform(Nokogiri::XML("<d>x</d>"), parameters)
rescue ArgumentError
  0
end

finish = Process.clock_gettime(Process::CLOCK_MONOTONIC) + ARGV[0].to_f
number = 0
while Process.clock_gettime(Process::CLOCK_MONOTONIC) < finish
  handle(number)
  broken
  ANSWERS[number % 3000] = "z" * 300 + number.to_s
  number += 1
  sleep 0.003 if number % 20 == 0
end
